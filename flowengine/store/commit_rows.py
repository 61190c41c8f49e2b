"""The rows of a commit: one type per section; its fields are the columns on both databases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Table

from flowengine.store.agent_tables import AgentInboxRow
from flowengine.store.log_tables import LogRow
from flowengine.store.records import NEW_TASK_COLUMNS, STEP_COLUMNS, STEP_UPDATE_COLUMNS
from flowengine.store.tables import (
    CacheRow,
    EventRow,
    FactRow,
    HistoryRow,
    JoinRow,
    LabelRow,
    OutboxRow,
    PayloadRow,
    ReferenceRow,
    RunRow,
    StepRow,
    TaskRow,
    TimerRow,
    UnnumberedRow,
)


class RunUpdate(NamedTuple):
    """The decided part of a run."""

    run_id: str
    expected_revision: int  #: the guard: the revision that was evaluated
    revision: int
    state: str
    generation: int
    open_steps: int
    step_count: int
    value_bytes: int
    task_count: int
    outputs: str | None
    error: str | None
    error_type: str | None
    alarm: str | None
    updated: int
    finished: int | None


class RunOrigin(NamedTuple):
    """The immutable part of a run, set at its start."""

    tenant: str
    workflow: str
    program_hash: str
    priority: int
    labels: str | None
    idempotency_key: str | None
    key_expires: int | None
    singleton_key: str | None
    queued_key: str | None
    root_run_id: str
    parent_run_id: str | None
    parent_step_id: str | None
    waiting_step_key: str | None
    depth: int
    on_cancel: str | None
    agent_call: str | None
    deadline: int | None
    created: int


class History(NamedTuple):
    run_id: str
    revision: int
    at: int
    summary: str


class Ending(NamedTuple):
    """The columns of a task that hold its outcome."""

    state: str
    outcome: str
    result: str | None
    error: str | None


class TaskReport(NamedTuple):
    run_id: str
    uuid: str
    lease: int
    updated: int
    state: str
    outcome: str
    result: str | None
    error: str | None


class NewEvent(NamedTuple):
    run_id: str
    id: str
    step_id: str
    event_type: str
    created: int


class ReusedEvent(NamedTuple):
    """An event that was completed with a result of the cache."""

    run_id: str
    id: str
    step_id: str
    event_type: str
    created: int
    source: str


class Cached(NamedTuple):
    """A result for the cache."""

    run_id: str
    id: str
    key: str
    tenant: str
    facet: str
    path: str
    returns: str | None
    created: int
    expires: int


class NewTimer(NamedTuple):
    run_id: str
    id: str
    step_id: str
    kind: str
    due: int
    created: int


class SupersededStep(NamedTuple):
    """A step that a later generation replaces."""

    run_id: str
    id: str


class EndedTimer(NamedTuple):
    """A timer whose step waits no longer."""

    run_id: str
    id: str
    fired: int


class JoinCount(NamedTuple):
    run_id: str
    id: str
    remaining: int
    updated: int


class ConsumedTask(NamedTuple):
    run_id: str
    uuid: str


class Fact(NamedTuple):
    run_id: str
    id: str
    kind: str
    payload: str
    created: int


class ConsumedFact(NamedTuple):
    run_id: str
    id: str


class ParentFact(NamedTuple):
    """A fact for the run that waits for this one."""

    run_id: str  #: the run that writes it
    to_run: str
    id: str
    kind: str
    payload: str
    created: int


class AgentReport(NamedTuple):
    """A message for the agent that waits for this run."""

    run_id: str  #: the run that writes it
    project_id: str
    inbox_id: str
    agent_id: str
    message_type: str
    correlation_id: str
    agent_turn_id: str
    turn_epoch: int
    payload: str
    next_retry_at: int
    created_at: int
    status: str
    processed_at: int | None


class Payload(NamedTuple):
    run_id: str
    hash: str
    body: str
    created: int


class Reference(NamedTuple):
    """A run has a large value."""

    run_id: str  #: the run that writes it
    to_run: str  #: the run that has the value
    hash: str


class Label(NamedTuple):
    run_id: str
    name: str
    value: str
    created: int


class ErrorType(NamedTuple):
    """The type of an error of a run that may have been caught, or was the cause of another."""

    run_id: str
    name: str  #: as a label


class Outcome(NamedTuple):
    """A commit whose outcomes are to be delivered to a sink."""

    run_id: str
    sink: str
    revision: int
    due: int
    tries: int
    created: int


class Unnumbered(NamedTuple):
    """A commit that the feed of all runs is to have."""

    run_id: str
    revision: int
    created: int


class StoredLog(NamedTuple):
    """A chunk of the log of a try."""

    run_id: str
    task_id: str
    lease: int
    first_line: int
    line_count: int
    created: int
    body: str


class Section(NamedTuple):
    """A list of a commit plan: into which table and columns its rows go."""

    table: Table
    columns: tuple[str, ...]
    #: Columns that every inserted row has, with their value in SQL.
    constants: Mapping[str, str] = {}
    #: Columns in which None means: as it is stored.
    optional: tuple[str, ...] = ()


_UNREAD = {"taken_in": "false"}
#: The sections of a plan, in the order in which they are written.
SECTIONS: dict[str, Section] = {
    "new_runs": Section(RunRow.__table__, ("id", *RunUpdate._fields[2:], *RunOrigin._fields)),
    "runs": Section(RunRow.__table__, (*RunUpdate._fields, "reports")),
    "history": Section(HistoryRow.__table__, History._fields),
    "reports": Section(TaskRow.__table__, TaskReport._fields),
    "new_steps": Section(StepRow.__table__, STEP_COLUMNS, constants={"superseded": "false"}),
    "steps": Section(StepRow.__table__, STEP_UPDATE_COLUMNS, optional=("params",)),
    "superseded_steps": Section(StepRow.__table__, SupersededStep._fields),
    "new_events": Section(EventRow.__table__, NewEvent._fields),
    "reused_events": Section(EventRow.__table__, ReusedEvent._fields),
    "timers": Section(TimerRow.__table__, NewTimer._fields),
    "ended_timers": Section(TimerRow.__table__, EndedTimer._fields),
    "joins": Section(JoinRow.__table__, JoinCount._fields),
    "new_tasks": Section(TaskRow.__table__, NEW_TASK_COLUMNS, constants=_UNREAD),
    "consumed_tasks": Section(TaskRow.__table__, ConsumedTask._fields),
    "facts": Section(FactRow.__table__, Fact._fields, constants=_UNREAD),
    "consumed_facts": Section(FactRow.__table__, ConsumedFact._fields),
    "parent_facts": Section(FactRow.__table__, ParentFact._fields, constants=_UNREAD),
    "agent_reports": Section(
        AgentInboxRow.__table__,
        AgentReport._fields,
        constants={"retry_count": "0"},
    ),
    "payloads": Section(PayloadRow.__table__, Payload._fields),
    "references": Section(ReferenceRow.__table__, Reference._fields),
    "cached": Section(CacheRow.__table__, Cached._fields),
    "labels": Section(LabelRow.__table__, Label._fields),
    "error_types": Section(
        LabelRow.__table__,
        ErrorType._fields,
        constants={
            "value": "''",
            "created": "(SELECT r.created FROM flowengine_run r WHERE r.id = g.run_id)",
        },
    ),
    "outbox": Section(OutboxRow.__table__, Outcome._fields),
    "unnumbered": Section(UnnumberedRow.__table__, Unnumbered._fields),
    "logs": Section(LogRow.__table__, StoredLog._fields),
}
