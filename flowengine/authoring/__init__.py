"""Authoring: decorated Python functions become programs (see `programs`)."""

from flowengine.authoring.annotations import json_value
from flowengine.authoring.calls import WorkflowCall
from flowengine.authoring.decorators import event_facet, facet, workflow
from flowengine.authoring.facets import EventFacet, Facet, Start, Workflow
from flowengine.authoring.launching import (
    Launcher,
    RunHandle,
    StartOptions,
    launcher,
    set_launcher_source,
)
from flowengine.authoring.loops import foreach
from flowengine.authoring.registry import event_facet_named, event_facet_names, workflow_named
from flowengine.authoring.symbols import concat, contains
from flowengine.program.nodes import RetryPolicy as Retry

__all__ = [  # noqa: RUF022 - grouped by who needs them
    # What an author writes
    "Retry",
    "concat",
    "contains",
    "event_facet",
    "facet",
    "foreach",
    "workflow",
    # What it becomes
    "EventFacet",
    "Facet",
    "RunHandle",
    "Start",
    "Workflow",
    # For the floors above
    "Launcher",
    "StartOptions",
    "WorkflowCall",
    "event_facet_named",
    "event_facet_names",
    "json_value",
    "launcher",
    "set_launcher_source",
    "workflow_named",
]
