"""Install the Workflows page in Flower.

Flower has no plugin API. It reads a list of handlers and a dict of settings from its module
`flower.urls` after it imported the Celery app; this module extends both. Only this module and
the two base classes in `pages` depend on Flower's internals.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("flowengine")


class _UnsupportedFlower(Exception):
    """This version of Flower cannot be extended."""


def install() -> bool:
    """Install the page; return whether it is installed.

    Flower must start in any case: if it cannot be extended, nothing changes and the log
    gives the reason.
    """
    try:
        _install()
    except Exception as problem:  # any error: Flower must start
        log.warning(
            "the Workflows page is not installed in Flower: %s",
            problem,
            extra={"action": "flower_page_refused"},
        )
        return False
    return True


def _install() -> None:
    try:
        import flower
    except ImportError:
        raise _UnsupportedFlower(
            "Flower is not installed: pip install 'flowengine[flower]'"
        ) from None
    version = str(getattr(flower, "__version__", "of unknown version"))
    if version.partition(".")[0] != "2":
        raise _UnsupportedFlower(f"it supports Flower 2.x, this is Flower {version}")
    from flower import urls

    handlers, settings = _attribute(urls, "handlers", list), _attribute(urls, "settings", dict)
    if any(getattr(handler, "name", None) == "workflows" for handler in handlers):
        return
    if "template_loader" in settings:
        raise _UnsupportedFlower("another extension already replaces Flower's templates")
    from flowengine.web.pages import HANDLERS, Templates

    templates = Templates(settings["template_path"])
    templates.load("navbar.html")  # fails now instead of at the first request
    # No errors from here on. Prepend: Flower's last handler matches every path.
    settings["template_loader"] = templates
    handlers[:0] = HANDLERS


def _attribute(module: Any, name: str, kind: type) -> Any:
    value = getattr(module, name, None)
    if not isinstance(value, kind):
        raise _UnsupportedFlower(f"this Flower has no {kind.__name__} {module.__name__}.{name}")
    return value
