"""Find a Celery app by name, as `celery -A` does, and its settings."""

from __future__ import annotations

from celery import Celery
from celery.app.utils import find_app

from flowengine.assembly.plugin import FlowEngine
from flowengine.errors import UnknownApp
from flowengine.settings import Settings


def app_named(name: str) -> Celery:
    """Import an app: `proj`, `proj.celery` or `proj.celery:app`; its own errors pass through."""
    module, _, attribute = name.partition(":")
    try:
        found = find_app(name)
    except ModuleNotFoundError as missing:
        if attribute and missing.name == name:  # Celery takes the rest for a module
            raise UnknownApp(name, f"module {module!r} has no {attribute!r}") from None
        if missing.name and _is_part(missing.name, module):
            raise UnknownApp(name, f"there is no module {missing.name!r}") from None
        raise
    except AttributeError as problem:
        if _raised_in(problem) == find_app.__code__.co_filename:
            raise UnknownApp(name, f"module {module!r} has none") from None
        raise
    if not hasattr(found, "conf"):
        raise UnknownApp(name, f"it is a {type(found).__name__}")
    return found


def _is_part(missing: str, module: str) -> bool:
    """Whether the missing module is the app's or a package around it, not an import inside it."""
    return module == missing or module.startswith(f"{missing}.") or missing == f"{module}.celery"


def _raised_in(problem: BaseException) -> str:
    """Return the file of the code that raised."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_code.co_filename


def settings_of(app: Celery) -> Settings:
    """Return the settings that the app's processes have, also if FlowEngine(app) comes later."""
    installed = getattr(app, "flowengine", None)
    if isinstance(installed, FlowEngine):
        return installed.settings
    return Settings.from_environment(configured=app.conf)
