"""The app that `celery -A flowengine` finds.

It is configured by `celeryconfig.py` in the working directory, or the module that
CELERY_CONFIG_MODULE names, and by FLOWENGINE_* in the environment. Facets come from the
modules in FLOWENGINE_IMPORTS.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from celery import Celery, signals
from celery.utils.imports import import_from_cwd

from flowengine.assembly import FlowEngine
from flowengine.settings import Settings

log = logging.getLogger("flowengine")


def _configuration() -> dict[str, Any]:
    name = os.environ.get("CELERY_CONFIG_MODULE")
    if name is None:
        # Only a file of this directory: another importable module belongs to someone else.
        if not Path("celeryconfig.py").exists():
            return {}
        name = "celeryconfig"
    module = import_from_cwd(name)
    return {
        key: value
        for key, value in vars(module).items()
        if key.islower() and not key.startswith("_") and not isinstance(value, ModuleType)
    }


def _make() -> Celery:
    app = Celery("flowengine")
    app.conf.update(_configuration())
    for option, variable in (
        ("broker_url", "FLOWENGINE_BROKER_URL"),
        ("result_backend", "FLOWENGINE_RESULT_BACKEND"),
    ):
        if os.environ.get(variable):
            setattr(app.conf, option, os.environ[variable])
    modules = Settings.from_environment(configured=app.conf).imports.split(",")
    named = [name.strip() for name in modules if name.strip()]
    app.conf.imports = [*(app.conf.imports or ()), *named]
    FlowEngine(app)
    for begins in (signals.celeryd_after_setup, signals.beat_init):
        begins.connect(_warn_without_broker, weak=False)
    return app


def _warn_without_broker(**_: Any) -> None:
    """Name our variable: Celery tries RabbitMQ on this machine for ever."""
    if not app.conf.broker_url:
        log.warning(
            "no broker is configured, so Celery tries RabbitMQ on this machine: set "
            "FLOWENGINE_BROKER_URL (for example redis://localhost:6379/0), or broker_url in "
            "celeryconfig.py",
            extra={"action": "no_broker"},
        )


app = _make()
