"""Durable workflows on the Celery you already run.

This module is the authoring API; it imports neither Celery nor a database driver. For
operations use ``from flowengine.engine import Engine``, for tests
``from flowengine.testing import Flow``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowengine.actors import Actor, ActorKind
from flowengine.authoring import (
    Breaker,
    Cache,
    CaughtError,
    Collected,
    EventFacet,
    Facet,
    FunctionWorkflow,
    ItemError,
    Limit,
    Rate,
    Retry,
    RunHandle,
    Secret,
    Workflow,
    and_,
    attempt,
    concat,
    contains,
    ends_with,
    event_facet,
    facet,
    foreach,
    is_in,
    not_,
    now,
    or_,
    set_launcher_source,
    sleep,
    sleep_until,
    starts_with,
    uuid,
    wait_for,
    when,
    workflow,
)
from flowengine.errors import (
    ActionRefused,
    AgentBusy,
    AlreadyRunning,
    AnswerRefused,
    AuthoringError,
    CallRefused,
    DeadlineExceeded,
    Divergence,
    EarlierRunFailed,
    FlowengineError,
    FunctionMisuse,
    GiveUp,
    InvalidDocument,
    InvalidInputs,
    InvalidProgram,
    InvalidSchedule,
    InvalidText,
    PartlyStarted,
    ProgramError,
    RetryAfter,
    RunCancelled,
    RunFailed,
    ScheduleRefused,
    StepFailed,
    SymbolMisuse,
    TooManyRuns,
    TryCancelled,
    TurnFailed,
    TurnRefused,
    UnknownSchedule,
    UnknownTurn,
    ValueRefused,
    WaitTimedOut,
    WorkflowClosed,
)
from flowengine.log_filter import safe_logger as _safe_logger
from flowengine.message_keys import signed_message
from flowengine.scheduling import Schedule, tick

if TYPE_CHECKING:
    from flowengine.agents import (
        AgentFacet,
        Budget,
        JoinOutcome,
        JoinResult,
        JoinTask,
        TurnHandle,
        agent,
        fork_join,
        instruction,
        tool,
    )
    from flowengine.assembly import default_engine, durable, load_program
    from flowengine.authoring import Launcher
    from flowengine.authoring.functions import changed, gather, random, step
    from flowengine.worker import CancelToken, StepContext, current_step

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - grouped
    # Authoring
    "event_facet",
    "facet",
    "workflow",
    "Retry",
    "RetryAfter",
    "GiveUp",
    "Limit",
    "Rate",
    "Cache",
    "Breaker",
    "Secret",
    # Control flow
    "foreach",
    "when",
    "attempt",
    "Collected",
    "ItemError",
    "CaughtError",
    # Operators on values of a run
    "and_",
    "or_",
    "not_",
    "is_in",
    "contains",
    "starts_with",
    "ends_with",
    "concat",
    # Deterministic time and ids
    "now",
    "uuid",
    # Waiting without a worker
    "sleep",
    "sleep_until",
    "wait_for",
    # Durable functions
    "gather",
    "step",
    "random",
    "changed",
    # Started by the clock
    "Schedule",
    "tick",
    # Agents
    "agent",
    "instruction",
    "tool",
    "fork_join",
    "Budget",
    "JoinTask",
    "JoinOutcome",
    "JoinResult",
    "AgentFacet",
    "TurnHandle",
    # Context of a running facet
    "current_step",
    "StepContext",
    "CancelToken",
    # Actors of actions on a run
    "Actor",
    "ActorKind",
    # Returned by the decorators and by start
    "EventFacet",
    "Facet",
    "Workflow",
    "FunctionWorkflow",
    "RunHandle",
    # A canvas of Celery as a workflow
    "durable",
    # The engine of this process, and program files
    "default_engine",
    "load_program",
    # Messages of other clients
    "signed_message",
    # Errors
    "FlowengineError",
    "AuthoringError",
    "SymbolMisuse",
    "ProgramError",
    "InvalidProgram",
    "InvalidDocument",
    "InvalidText",
    "InvalidInputs",
    "ValueRefused",
    "AlreadyRunning",
    "TooManyRuns",
    "WorkflowClosed",
    "PartlyStarted",
    "RunFailed",
    "RunCancelled",
    "AnswerRefused",
    "ActionRefused",
    "TryCancelled",
    "WaitTimedOut",
    "DeadlineExceeded",
    "StepFailed",
    "FunctionMisuse",
    "Divergence",
    "EarlierRunFailed",
    "AgentBusy",
    "TurnRefused",
    "TurnFailed",
    "UnknownTurn",
    "CallRefused",
    "InvalidSchedule",
    "ScheduleRefused",
    "UnknownSchedule",
]

_LATE = {
    # Durable functions load asyncio.
    "changed": "flowengine.authoring.functions",
    "gather": "flowengine.authoring.functions",
    "random": "flowengine.authoring.functions",
    "step": "flowengine.authoring.functions",
    "agent": "flowengine.agents",
    "instruction": "flowengine.agents",
    "tool": "flowengine.agents",
    "fork_join": "flowengine.agents",
    "JoinTask": "flowengine.agents",
    "JoinOutcome": "flowengine.agents",
    "JoinResult": "flowengine.agents",
    "Budget": "flowengine.agents",
    "AgentFacet": "flowengine.agents",
    "TurnHandle": "flowengine.agents",
    "default_engine": "flowengine.assembly",
    "durable": "flowengine.assembly",
    "load_program": "flowengine.assembly",
    "current_step": "flowengine.worker",
    "StepContext": "flowengine.worker",
    "CancelToken": "flowengine.worker",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        from importlib import import_module

        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _default_launcher() -> Launcher:
    from flowengine.assembly import EngineLauncher, default_engine

    return EngineLauncher(default_engine())


set_launcher_source(_default_launcher)
_safe_logger("flowengine")
