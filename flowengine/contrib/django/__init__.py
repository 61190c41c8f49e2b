"""flowengine in a Django project.

    INSTALLED_APPS = [..., "flowengine.contrib.django"]

Importing this package makes `settings.FLOWENGINE` and the database of `settings.DATABASES` the
settings of flowengine; nothing is read before they are needed. A Celery project creates its engine
by the name that this package offers, so that the worker, too, has imported it:

    from flowengine.contrib.django import FlowEngine

    app = Celery("shop")
    app.config_from_object("django.conf:settings", namespace="CELERY")
    FlowEngine(app)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowengine.contrib.django.project import project_settings
from flowengine.settings import set_project_settings

if TYPE_CHECKING:
    from flowengine.assembly import FlowEngine

__all__ = ["FlowEngine"]

set_project_settings(project_settings)


def __getattr__(name: str) -> Any:
    if name == "FlowEngine":  # loads Celery and SQLAlchemy, which most commands do not need
        from flowengine.assembly import FlowEngine

        return FlowEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
