"""The tables.

SQLModel classes are the schema; a test compares them with Alembic's migrations. They have a
registry of their own, because the user's application has its own tables and metadata.

JSON is text that `codec` writes: ASCII only, so that every value fits every database. A large
value is a reference to `payload`. All times are milliseconds since the epoch.
"""

from __future__ import annotations

from sqlalchemy import DDL, Index, event, text
from sqlmodel import Field

from flowengine.store import agent_tables as agent_tables  # its tables belong to the schema
from flowengine.store import catalogue_tables as catalogue_tables
from flowengine.store import log_tables as log_tables
from flowengine.store import schedule_tables as schedule_tables
from flowengine.store.columns import Table as _Table
from flowengine.store.columns import count_column as _count
from flowengine.store.columns import id_column as _id
from flowengine.store.columns import metadata as metadata
from flowengine.store.columns import name_column as _name
from flowengine.store.columns import partial_index as _partial
from flowengine.store.columns import text_column as _text
from flowengine.store.columns import time_column as _time

# The conditions of the partial indexes, as queries must state them. SQLite uses a partial index
# only for a query with the same condition, and a bound parameter hides it from both databases.
TASK_IS_PENDING = "state = 'pending'"
TASK_IS_WAITING = "state = 'waiting'"
TASK_IS_RUNNING = "state = 'running'"
TASK_IS_REPORTED = "state IN ('completed', 'failed') AND NOT taken_in"
TASK_IS_RETRY = "state = 'pending' AND due > created AND published IS NULL"
LIMIT_IS_DUE = "due IS NOT NULL"
RUN_HAS_ALARM = "alarm IS NOT NULL"
RUN_IS_QUEUED = "queued_key IS NOT NULL AND finished IS NULL"
RUN_IS_CHILD = "parent_run_id IS NOT NULL"
RUN_HAS_KEY = "idempotency_key IS NOT NULL"
RUN_HAS_RELEASED_KEY = "released_key IS NOT NULL"
RUN_HAS_ERROR = "error_type IS NOT NULL"
RUN_IS_LISTED = "agent_call IS NULL"  #: not the run of a call of a turn
RUN_IS_OF_AGENT = "agent_call IS NOT NULL"
STEP_IS_MAILBOX = "object_type = 'Mailbox'"
FACT_IS_WAITING = "NOT taken_in"
FACT_IS_ACTION = "kind IN ('Action', 'Operation')"  #: of somebody on a run, or on something else
TIMER_IS_SET = "fired IS NULL"
OUTBOX_IS_DUE = "due IS NOT NULL"


class ProgramRow(_Table):
    """A compiled program, stored once by its content hash and immutable."""

    hash: str = _id(primary_key=True)
    body: str = _text("")
    created: int = _time()


class RunRow(_Table):
    """One execution of a workflow."""

    __table_args__ = (
        Index("flowengine_run_idempotency", "tenant", "workflow", "idempotency_key", unique=True),
        _partial(
            *("finished IS NULL", "flowengine_run_singleton"),
            *("tenant", "workflow", "singleton_key"),
            unique=True,
        ),
        _partial(
            *(RUN_IS_QUEUED, "flowengine_run_queued", "tenant", "workflow", "queued_key"),
            *("created", "id"),
        ),
        _partial(RUN_IS_QUEUED, "flowengine_run_queued_id", "id"),
        # In two parts: a list that leaves out the runs of agents costs the same whatever their
        # number. A query for all runs asks both.
        _partial(RUN_IS_LISTED, "flowengine_run_created", "tenant", "created"),
        _partial(RUN_IS_LISTED, "flowengine_run_state", "state", "created"),
        _partial(RUN_IS_OF_AGENT, "flowengine_run_agent_created", "tenant", "created"),
        _partial(RUN_IS_OF_AGENT, "flowengine_run_agent_state", "state", "created"),
        Index("flowengine_run_parent", "parent_run_id"),
        _partial(RUN_HAS_ALARM, "flowengine_run_alarm", "id"),
        _partial(RUN_IS_CHILD, "flowengine_run_root", "root_run_id"),
        # Filters of lists. None has a column that changes while a run goes on: such a change would
        # write to every index of the table.
        Index("flowengine_run_workflow", "workflow", "created"),
        _partial(RUN_HAS_KEY, "flowengine_run_key", "idempotency_key"),
        _partial(RUN_HAS_RELEASED_KEY, "flowengine_run_released_key", "released_key"),
        _partial(RUN_HAS_ERROR, "flowengine_run_error_type", "error_type", "created"),
    )

    id: str = _id(primary_key=True)
    tenant: str = _name("", 64)
    workflow: str = _name()
    program_hash: str = _id()
    state: str = _name("RUNNING", 16)
    generation: int = 0  #: raised when an operator retries from a step
    revision: int = 0  #: commits so far; numbers the history
    priority: int = 0
    open_steps: int = 0  #: steps that wait at their event
    task_count: int = 0  #: tasks so far; orders them
    step_count: int = _count()  #: steps, blocks and repeated tries so far; has a limit
    #: Bytes of values that its commits have written so far; has a limit.
    value_bytes: int = _time(sa_column_kwargs={"server_default": "0"})
    outputs: str | None = _text()
    error: str | None = _text()
    error_type: str | None = _name(None)
    alarm: str | None = _text()
    labels: str | None = _text()
    idempotency_key: str | None = _name(None)
    #: The key of a failed run until a later start replaced the run, and took the key.
    released_key: str | None = _name(None)
    key_expires: int | None = _time(None)  #: from then on another run may take its key
    singleton_key: str | None = _name(None)
    queued_key: str | None = _name(None)  #: the singleton key of a run that waits for it
    parent_run_id: str | None = _id(default=None)
    parent_step_id: str | None = _id(default=None)
    waiting_step_key: str | None = _id(default=None)  #: of the parent's step, if it waits
    root_run_id: str | None = _id(default=None)
    depth: int = _count()  #: runs above it, up to its root
    #: Of a child run, when its parent is cancelled: "leave" or, in most, nothing: it is cancelled.
    on_cancel: str | None = _name(None, 16)
    #: The call of an agent that waits for its end, as `store.agent_calls` writes it.
    agent_call: str | None = _text()
    forked_from: str | None = _id(default=None)  #: the run whose steps it took over
    deadline: int | None = _time(None)
    created: int = _time()
    updated: int = _time()
    finished: int | None = _time(None)


class StepRow(_Table):
    """One call inside a run, or one block of a body."""

    __table_args__ = (
        # Idempotent: evaluating twice creates no step twice.
        Index("flowengine_step_instance", "run_id", "key", "generation", unique=True),
        _partial(STEP_IS_MAILBOX, "flowengine_step_mailbox", "run_id"),
    )

    id: str = _id(primary_key=True)
    run_id: str = _id()
    key: str = _id()  #: digest of the path: long paths break indexes
    generation: int = 0
    superseded: bool = False  #: replaced by a later generation
    path: str = _text("")
    object_type: str = _name("", 32)
    address: str = _text("")
    facet_name: str = _name()
    parent: str | None = _id(default=None)
    position: int = 0
    state: str = _name("", 48)
    params: str | None = _text()
    returns: str | None = _text()
    error: str | None = _text()
    waiting: int = 0
    remaining: int = 0
    item_count: int = 0
    next_index: int = 0
    failure: str | None = _text()
    yields: str | None = _text()
    #: Of a step whose program is not the run's. No writer yet: kept for retries with a new program.
    program_hash: str | None = _id(default=None)
    created: int = _time()
    updated: int = _time()
    digest: str | None = _id(default=None)  #: of the arguments of a call of a durable function
    #: Of such a call: the numbers of the calls whose ends the function heard since the one before;
    #: of the function: since its last call.
    heard: str | None = _text()
    activation: int = _count()  #: of a durable function: the number of its last activation


# A row is inserted at the beginning and updated at the end. With room in its page PostgreSQL makes
# that a heap-only update, which leaves the indexes alone.
for _table in (RunRow.__table__, StepRow.__table__):
    _fill_factor = DDL(f"ALTER TABLE {_table.name} SET (fillfactor = 45)")  # type: ignore[no-untyped-call]
    event.listen(_table, "after_create", _fill_factor.execute_if(dialect="postgresql"))


class EventRow(_Table):
    """The outside work that a step requested. Its state follows from its step and task."""

    run_id: str = _id(primary_key=True)
    id: str = _id(primary_key=True)
    step_id: str = _id()
    event_type: str = _name()
    created: int = _time()
    #: Of a result from the cache: the run and the path of the step that had it, and when, as JSON.
    source: str | None = _text()


class TaskRow(_Table):
    """One try of a step's event."""

    __table_args__ = (
        _partial(TASK_IS_RUNNING, "flowengine_task_one_running_per_step", "step_id", unique=True),
        _partial(
            *(TASK_IS_PENDING, "flowengine_task_due", "task_list_name"),
            *("tenant", "rank", "due", "position"),
        ),
        _partial(
            *(TASK_IS_WAITING, "flowengine_task_waiting", "queue"), *("rank", "due", "position")
        ),
        _partial(TASK_IS_RUNNING, "flowengine_task_running", "boot_id"),
        _partial(TASK_IS_REPORTED, "flowengine_task_reported", "run_id", "join_id"),
        _partial(TASK_IS_RETRY, "flowengine_task_retry", "due"),
        # A query for the tasks of a step knows its run: one index serves both.
        Index("flowengine_task_run", "run_id", "step_id"),
    )

    uuid: str = _id(primary_key=True)
    run_id: str = _id()
    tenant: str = _name("", 64, sa_column_kwargs={"server_default": text("''")})  #: of the run
    step_id: str = _id()
    step_key: str = _id()
    step_path: str = _text("")
    program_hash: str = _id()
    name: str = _name()
    short_name: str = _name()
    task_list_name: str = _name("default")
    data_type: str = _name("", 64)
    position: int = 0  #: order of creation inside the run
    try_number: int = 1
    losses: int = 0
    lease: int = 0
    state: str = _name("pending", 16)
    rank: int = 0  #: due time and priority (`evaluator.priorities`); the lowest is claimed first
    due: int = _time()
    timeout_ms: int | None = _time(None)
    runs_once: bool = False  #: at most once: a started try is not repeated
    #: Whether its run is held: a running task that is released becomes held, not pending.
    is_held: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    published: int | None = _time(None)
    started: int | None = _time(None)
    activity: int | None = _time(None)
    server_id: str | None = _id(default=None)
    boot_id: str | None = _id(default=None)
    pid: int | None = None
    limit_key: str | None = _name(None)  #: its circuit breaker
    limits: str | None = _text()  #: its keys, with the numbers that its program states
    queue: str | None = _id(default=None)  #: in which it waits for its keys
    join_id: str | None = _id(default=None)  #: its join counter
    #: Of a reported try: succeeded, failed, final, lost, handed.
    outcome: str | None = _name(None, 16)
    result: str | None = _text()
    error: str | None = _text()
    progress: str | None = _text()  #: that the code of the facet has reported last
    # Milliseconds that it waited, by reason. The rest of the time before its start it was queued.
    waited_backoff: int | None = _time(None)  #: of a parked task: its due time was replaced
    waited_limit: int | None = _time(None)
    waited_rate: int | None = _time(None)
    waited_circuit: int | None = _time(None)
    waited_hold: int | None = _time(None)
    taken_in: bool = False
    created: int = _time()
    updated: int = _time()


class LimitRow(_Table):
    """A key of limits or rates. Its lock orders the admissions under it."""

    __table_args__ = (_partial(LIMIT_IS_DUE, "flowengine_limit_due", "due"),)

    key: str = _name(primary_key=True)
    count: int = 1
    per: int | None = _time(None)  #: of a rate: milliseconds
    since: int = _time()  #: when the run was started whose program states the numbers
    due: int | None = _time(None)  #: when a slot of a rate becomes free for which somebody waits
    updated: int = _time()
    #: The numbers that somebody has set in place of those of the programs; none: `set_at` is empty.
    set_count: int | None = None
    set_per: int | None = _time(None)
    set_by: str | None = _name(None)
    set_reason: str | None = _text()
    set_at: int | None = _time(None)


class BreakerRow(_Table):
    """The values that somebody has set for a circuit breaker, in place of its code's."""

    name: str = _name(primary_key=True)
    is_open: bool = False  #: held open: no call is permitted
    failure_threshold: int | None = None
    timeout_ms: int | None = _time(None)
    actor: str = _name("")
    reason: str = _text("")
    updated: int = _time()


class SlotRow(_Table):
    """A task that was admitted under a key. The slot is free when the task is not open any more.

    The slot of a rate stays taken for one period after the task was started.
    """

    key: str = _name(primary_key=True)
    task_id: str = _id(primary_key=True)
    per: int | None = _time(None)  #: of a rate
    until: int | None = _time(None)  #: of a rate; None: the task was not started


class QueueRow(_Table):
    """Tasks that wait for the same keys. It has a row while one of the keys has no free slot."""

    __table_args__ = (
        Index("flowengine_queue_turn", "blocked_on", "turn"),
        _partial(LIMIT_IS_DUE, "flowengine_queue_due", "due"),
    )

    id: str = _id(primary_key=True)
    limits: str = _text("")  #: its keys, as the first task states them
    blocked_on: str | None = _name(None)  #: the key without a free slot
    turn: int = _time()  #: when it was served last; the lowest is next
    passed: int = 0  #: how often it was passed over
    switches: str | None = _text()  #: since when it waits for a limit, since when for a rate
    due: int | None = _time(None)  #: when the next of its tasks is due
    updated: int = _time()


class JoinRow(_Table):
    """A join counter: the number of unreported tasks of a group."""

    __table_args__ = (Index("flowengine_join_run", "run_id"),)

    id: str = _id(primary_key=True)
    run_id: str = _id()
    remaining: int = 0
    updated: int = _time()


class FactRow(_Table):
    """Something that happened to a run: an entry of its inbox.

    An operation is an action on something else, as a worker or a workflow: its run is empty.
    """

    __table_args__ = (
        Index("flowengine_fact_once", "run_id", "dedupe_key", unique=True),
        _partial(FACT_IS_WAITING, "flowengine_fact_waiting", "run_id"),
        _partial(FACT_IS_ACTION, "flowengine_fact_action", "created", "id"),
    )

    id: str = _id(primary_key=True)
    run_id: str = _id()
    kind: str = _name("", 32)
    dedupe_key: str | None = _name(None)
    payload: str | None = _text()
    actor: str | None = _name(None)
    reason: str | None = _text()
    taken_in: bool = False
    created: int = _time()


class HistoryRow(_Table):
    """One commit of a run."""

    run_id: str = _id(primary_key=True)
    revision: int = Field(primary_key=True)
    at: int = _time()
    summary: str = _text("")


class UnnumberedRow(_Table):
    """A commit of a run that has no place in the feed of all runs yet.

    Written by that commit, only with the setting `event_feed`; removed when it is numbered.
    """

    __table_args__ = (Index("flowengine_unnumbered_created", "created"),)

    run_id: str = _id(primary_key=True)
    revision: int = Field(primary_key=True)
    created: int = _time()


class FeedRow(_Table):
    """A place in the feed of all runs: numbers without gaps, each a commit of a run."""

    __table_args__ = (
        Index("flowengine_feed_run", "run_id", "revision", unique=True),
        Index("flowengine_feed_tenant", "tenant", "position"),
    )

    position: int = _time(primary_key=True, sa_column_kwargs={"autoincrement": False})
    run_id: str = _id()
    revision: int = 0
    tenant: str = _name("", 64)  #: of the run


class CounterRow(_Table):
    """A number that only grows. Its lock orders the transactions that raise it."""

    name: str = _name(primary_key=True, length=64)
    value: int = _time()


class TimerRow(_Table):
    """Something that is due at a time: a sleep, a deadline."""

    __table_args__ = (_partial(TIMER_IS_SET, "flowengine_timer_due", "due"),)

    id: str = _id(primary_key=True)
    run_id: str = _id()
    step_id: str | None = _id(default=None)
    kind: str = _name("", 32)
    due: int = _time()
    fired: int | None = _time(None)
    created: int = _time()


class LabelRow(_Table):
    """One label of a run, for lists by label. The run's own row has all of them."""

    __table_args__ = (Index("flowengine_label_run", "name", "value", "created", "run_id"),)

    run_id: str = _id(primary_key=True)
    name: str = _name(primary_key=True)
    value: str = _name()
    created: int = _time()  #: of the run


class PayloadRow(_Table):
    """A large value, stored once by its content hash."""

    hash: str = _id(primary_key=True)
    body: str = _text("")
    created: int = _time()


class ReferenceRow(_Table):
    """A run refers to this large value. The value is removed with the last run that does."""

    __table_args__ = (Index("flowengine_reference_hash", "hash"),)

    run_id: str = _id(primary_key=True)
    hash: str = _id(primary_key=True)


class CacheRow(_Table):
    """A result of an event facet that later steps with the same key complete with.

    Its large values have references with the id of this row in place of a run's.
    """

    __table_args__ = (
        Index("flowengine_cache_key", "key", "created"),
        Index("flowengine_cache_expires", "expires"),
    )

    id: str = _id(primary_key=True)
    key: str = _id()  #: a digest of the tenant, the facet, the types of its results, and the key
    tenant: str = _name("", 64)
    facet: str = _name()
    run_id: str = _id()  #: the run and the step that had it
    path: str = _text("")
    returns: str | None = _text()
    created: int = _time()
    expires: int = _time()


class ExchangeRow(_Table):
    """One answer of a model in a step, or one result of a tool that it asked for.

    Written under the lease of the step's task, before anything follows from it. Never changed.
    """

    run_id: str = _id(primary_key=True)
    step_id: str = _id(primary_key=True)
    number: int = Field(primary_key=True)  #: in the step, from 0
    kind: str = _name("", 16)  #: answer, result, end
    content: str = _text("")
    created: int = _time()


class OutboxRow(_Table):
    """A commit of a run whose outcomes are to be delivered to a sink: signals or the webhook.

    Written by that commit, only if the sink is configured; removed when it was delivered.
    """

    __table_args__ = (_partial(OUTBOX_IS_DUE, "flowengine_outbox_due", "due"),)

    run_id: str = _id(primary_key=True)
    sink: str = _name(length=16, primary_key=True)
    revision: int = Field(primary_key=True)
    due: int | None = _time(None)  #: None: given up
    tries: int = 0
    error: str | None = _text()  #: of the last delivery
    created: int = _time()


class ServerRow(_Table):
    """A process that claims tasks."""

    # Without the time: an update of an indexed column writes to every index of its table.
    __table_args__ = (Index("flowengine_server_state", "state"),)

    uuid: str = _id(primary_key=True)
    boot_id: str = _id()
    server_group: str = _name("default")
    service_name: str = _name()
    server_name: str = _name()
    server_ips: str | None = _text()
    start_time: int = _time()
    ping_time: int = _time()
    topics: str | None = _text()
    handlers: str | None = _text()
    state: str = _name("startup", 16)
    manager: str = _name()
    error: str | None = _text()
    pid: int | None = None
    lock_file: str | None = _text()  #: held while an embedded process lives
    lock_token: str | None = _text()  #: of the session lock that it holds, on PostgreSQL
    version: str = _name("", 64, sa_column_kwargs={"server_default": text("''")})
    machine: str = _name(sa_column_kwargs={"server_default": text("''")})  #: its host name
    max_tasks: int | None = None  #: of its settings
    max_workflows: int | None = None
    full_lists: str | None = _text()  #: task lists whose wake-ups met it at its limit
    app: str = _name(sa_column_kwargs={"server_default": text("''")})  #: the Celery app's name
    #: The fingerprint of its broker: others cannot be woken by its messages.
    broker: str = _name("", 16, sa_column_kwargs={"server_default": text("''")})
    definitions: str | None = _text()  #: the code of its facets: module, name, line and digest


class WorkerLimitRow(_Table):
    """The limits that somebody has set for the servers of one name, in place of their settings."""

    name: str = _name(primary_key=True)
    max_tasks: int | None = None
    max_workflows: int | None = None
    actor: str | None = _name(None)  #: of the last change
    updated: int = _time()


class TokenRow(_Table):
    """An access token of the wire protocol, as a digest."""

    __table_args__ = (
        Index("flowengine_token_name", "name", unique=True),
        Index("flowengine_token_digest", "digest", unique=True),
    )

    id: str = _id(primary_key=True)
    name: str = _name(length=100)
    digest: str = _name(length=64)  #: SHA-256 of the token, which is not stored
    scopes: str | None = _text()
    task_lists: str | None = _text()
    tenant: str = _name("", 64)
    created: int = _time()
    expires: int | None = _time(None)
    revoked: int | None = _time(None)


class HandledRow(_Table):
    """How many tries of one facet a server has run; the sum of its processes."""

    server_id: str = _id(primary_key=True)
    handler: str = _name(primary_key=True)
    handled: int = 0
    not_handled: int = 0


class LockRow(_Table):
    """A lease by name, for work that one process at a time does."""

    name: str = _name(primary_key=True)
    owner: str = _id()
    until: int = _time()


class WorklockRow(_Table):
    """A lock on work: of an item that a runner works on, or of a user's key."""

    __table_args__ = (Index("flowengine_worklock_expires", "expires"),)

    key: str = _name(primary_key=True)
    holder: str = _id()
    acquired: int = _time()
    expires: int = _time()
    meta: str | None = _text()  #: the work, for people
