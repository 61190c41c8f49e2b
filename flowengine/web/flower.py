"""Put the Workflows page into Flower.

Flower has no plugins. It builds itself from two objects of its module `flower.urls`, a
list of handlers and a dict of settings, after the Celery app was imported; what stands in
them by then is served. All that we know of Flower's inside is used here, and in `pages`
the two classes its own pages are made of.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("flowengine")


class _Unfit(Exception):
    """This Flower is not one we know how to extend."""


def install() -> bool:
    """Put the page into Flower; True when it is there.

    Flower must start whatever we find: when it is not as we know it, nothing is touched and
    the log says why.
    """
    try:
        _install()
    except Exception as problem:  # whatever it is: their Flower is worth more than our page
        log.warning("the Workflows page is off: %s", problem)
        return False
    return True


def _install() -> None:
    try:
        import flower
    except ImportError:
        raise _Unfit("Flower is not installed: pip install 'flowengine[flower]'") from None
    version = str(getattr(flower, "__version__", "of unknown version"))
    if version.partition(".")[0] != "2":
        raise _Unfit(f"it fits Flower 2.x, and this is Flower {version}")
    from flower import urls

    handlers, settings = _known(urls, "handlers", list), _known(urls, "settings", dict)
    if any(getattr(handler, "name", None) == "workflows" for handler in handlers):
        return
    if "template_loader" in settings:
        raise _Unfit("another extension has already replaced Flower's templates")
    from flowengine.web.pages import HANDLERS
    from flowengine.web.templates import Templates

    templates = Templates(settings["template_path"])
    templates.load("navbar.html")  # fails here, and not at the first request
    # Nothing can go wrong any more. First in the list: Flower's last handler takes all.
    settings["template_loader"] = templates
    handlers[:0] = HANDLERS


def _known(module: Any, name: str, kind: type) -> Any:
    found = getattr(module, name, None)
    if not isinstance(found, kind):
        raise _Unfit(f"this Flower has no {kind.__name__} {module.__name__}.{name}")
    return found
