"""Event facets as Celery tasks under their own names.

They appear in `inspect registered`, routes and Flower, and `send_task` can call one outside any
run. Steps of runs are not executed this way: they are claimed from the database.
"""

from __future__ import annotations

from typing import Any

from flowengine.authoring import EventFacet, event_facet_named, event_facet_names


def register_facets(app: Any) -> None:
    """Register every event facet of this process that the app does not have yet."""
    for name in event_facet_names():
        facet = event_facet_named(name)
        if facet is not None and name not in app.tasks:
            _register(app, name, facet)


def _register(app: Any, name: str, facet: EventFacet[..., Any]) -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        return facet(*args, **kwargs)

    call.__doc__ = facet.__doc__
    app.task(call, name=name, shared=False)
