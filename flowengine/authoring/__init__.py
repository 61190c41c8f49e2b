"""Authoring: compile decorated Python functions into programs."""

from flowengine.authoring.annotations import json_value
from flowengine.authoring.attempts import CaughtError, attempt
from flowengine.authoring.branches import when
from flowengine.authoring.decorators import event_facet, facet, workflow
from flowengine.authoring.facets import EventFacet, Facet, Workflow, offer_standard
from flowengine.authoring.function_facets import FunctionFacet, FunctionWorkflow
from flowengine.authoring.launcher_slot import (
    IfFailed,
    IfRunning,
    Launcher,
    OnCancel,
    RunHandle,
    StartOptions,
    launcher,
    set_launcher_source,
)
from flowengine.authoring.loops import Collected, ItemError, foreach
from flowengine.authoring.operators import (
    and_,
    concat,
    contains,
    ends_with,
    is_in,
    not_,
    or_,
    starts_with,
)
from flowengine.authoring.options import Breaker
from flowengine.authoring.registry import (
    LoadedWorkflow,
    all_workflows,
    breaker_named,
    event_facet_named,
    event_facet_names,
    loaded_workflows,
    register_program,
    scheduled_workflows,
    workflow_named,
    workflow_names,
    workflow_of_version,
)
from flowengine.authoring.secrets import Secret
from flowengine.authoring.standard import WorkflowCall, now, uuid
from flowengine.authoring.starts import Start
from flowengine.authoring.task_lists import set_task_list_source
from flowengine.authoring.waits import sleep, sleep_until, wait_for
from flowengine.program.event_options import Cache, Limit, Rate
from flowengine.program.event_options import RetryPolicy as Retry

__all__ = [  # noqa: RUF022 - grouped by user
    # Constructs of the language
    "Breaker",
    "Cache",
    "Limit",
    "Rate",
    "Retry",
    "Secret",
    "and_",
    "attempt",
    "concat",
    "contains",
    "ends_with",
    "event_facet",
    "facet",
    "foreach",
    "is_in",
    "not_",
    "now",
    "or_",
    "starts_with",
    "uuid",
    "when",
    "workflow",
    # Values of `attempt` and `foreach`
    "CaughtError",
    "Collected",
    "ItemError",
    # Results of the decorators and of start
    "EventFacet",
    "Facet",
    "FunctionFacet",
    "FunctionWorkflow",
    "RunHandle",
    "Start",
    "Workflow",
    # For the layers above
    "IfFailed",
    "IfRunning",
    "OnCancel",
    "Launcher",
    "StartOptions",
    "WorkflowCall",
    "breaker_named",
    "event_facet_named",
    "event_facet_names",
    "json_value",
    "launcher",
    "offer_standard",
    "set_launcher_source",
    "sleep",
    "sleep_until",
    "wait_for",
    "set_task_list_source",
    "scheduled_workflows",
    "LoadedWorkflow",
    "all_workflows",
    "loaded_workflows",
    "register_program",
    "workflow_named",
    "workflow_of_version",
    "workflow_names",
]
