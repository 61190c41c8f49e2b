"""A session: the rows of the store, inside a transaction or statement by statement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import Connection, CursorResult, Executable

from flowengine.store.actions import Actions
from flowengine.store.admission import AdmissionRows
from flowengine.store.agent_heads import AgentHeads
from flowengine.store.agent_inbox import AgentInbox
from flowengine.store.agent_joins import AgentJoins
from flowengine.store.agent_lists import AgentLists
from flowengine.store.agent_purge import AgentPurge
from flowengine.store.agent_turns import AgentTurns
from flowengine.store.backend import Executor
from flowengine.store.breakers import Breakers
from flowengine.store.calls import Calls
from flowengine.store.cards import Cards
from flowengine.store.catalogue import Catalogue
from flowengine.store.children import Children
from flowengine.store.claims import Claims
from flowengine.store.closed_workflows import ClosedWorkflows
from flowengine.store.commits import CommitPlan, OutboxRule, PollerNotes
from flowengine.store.driven_runs import DrivenRuns
from flowengine.store.due_names import DueTasks
from flowengine.store.exchanges import Exchanges
from flowengine.store.feed import Feed
from flowengine.store.forks import Forks
from flowengine.store.function_steps import FunctionSteps
from flowengine.store.history import History
from flowengine.store.idle_keys import IdleKeys
from flowengine.store.inbox import Inbox
from flowengine.store.invariants import InvariantQueries
from flowengine.store.limit_keys import LimitKeys
from flowengine.store.locks import Locks
from flowengine.store.logs import Logs
from flowengine.store.outbox import Outbox
from flowengine.store.parts import Part
from flowengine.store.payloads import Payloads
from flowengine.store.purge import Purge
from flowengine.store.recovery_queries import RecoveryQueries
from flowengine.store.reports import Reports
from flowengine.store.result_cache import ResultCache
from flowengine.store.run_keys import RunKeys
from flowengine.store.run_lists import RunLists
from flowengine.store.run_rows import RunRows
from flowengine.store.runs import Runs
from flowengine.store.schedules import Schedules
from flowengine.store.sealed_values import SealedValues
from flowengine.store.servers import Servers
from flowengine.store.steps import Steps
from flowengine.store.tasks import Tasks
from flowengine.store.tokens import Tokens
from flowengine.store.waits import WaitQueries
from flowengine.store.work_locks import WorkLocks
from flowengine.store.worker_limits import WorkerLimits

if TYPE_CHECKING:
    from flowengine.store.database import Database


T = TypeVar("T", bound=Part)


class _PartOf(Generic[T]):
    """An attribute of a session: a part, made for each access so that no cycle is left."""

    def __init__(self, part: type[T]) -> None:
        self._part = part

    def __get__(self, session: SqlSession, owner: type[SqlSession]) -> T:
        return self._part(session)


class SqlSession:
    """Rows, inside a transaction or operation by operation; `dialect` has the differences.

    With a SQLAlchemy `connection` it is a transaction. Without one each operation commits by
    itself, and only the operations of the hot path are available.
    """

    def __init__(
        self, database: Database, executor: Executor, connection: Connection | None = None
    ) -> None:
        self.database, self._connection = database, connection
        self.executor, self.dialect = executor, database.dialect
        self.rows = executor.rows  #: executes SQL text

    def execute(
        self, statement: Executable, parameters: Any = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Execute a statement of SQLAlchemy; in a transaction only."""
        return self.connection.execute(statement, parameters)

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "a session outside a transaction has no connection"
        return self._connection

    # --- time ---

    def now(self) -> int:
        """Return the time in milliseconds, without a second connection."""
        return self.database.read_clock(self)

    # --- commits ---

    @property
    def outbox_rule(self) -> OutboxRule | None:
        return self.database.outbox_rule

    @property
    def poller_notes(self) -> PollerNotes | None:
        return self.database.poller_notes

    def commit(self, plan: CommitPlan, *, guarded: bool = False) -> set[str]:
        """Write a commit plan; return the runs whose part was written.

        With `guarded` (optimistic commit) the part of a run is written if its revision is
        unchanged and its reported leases are held. Without, the caller holds the run's lock.
        """
        return self.dialect.commit(self.executor, plan, guarded=guarded)

    def stream_commits(self) -> AbstractContextManager[Callable[[CommitPlan], object]]:
        """Return a function that writes commits of a locked run, in this transaction."""
        return self.dialect.stream_commits(self.executor)

    # --- rows ---

    runs = _PartOf(Runs)
    agent_heads = _PartOf(AgentHeads)
    agent_inbox = _PartOf(AgentInbox)
    agent_joins = _PartOf(AgentJoins)
    agent_lists = _PartOf(AgentLists)
    agent_purge = _PartOf(AgentPurge)
    agent_turns = _PartOf(AgentTurns)
    calls = _PartOf(Calls)
    function_steps = _PartOf(FunctionSteps)
    cards = _PartOf(Cards)
    run_keys = _PartOf(RunKeys)
    sealed_values = _PartOf(SealedValues)
    steps = _PartOf(Steps)
    tasks = _PartOf(Tasks)
    claims = _PartOf(Claims)
    due_tasks = _PartOf(DueTasks)
    reports = _PartOf(Reports)
    inbox = _PartOf(Inbox)
    history = _PartOf(History)
    payloads = _PartOf(Payloads)
    recovery = _PartOf(RecoveryQueries)
    servers = _PartOf(Servers)
    locks = _PartOf(Locks)
    logs = _PartOf(Logs)
    work_locks = _PartOf(WorkLocks)
    waits = _PartOf(WaitQueries)
    outbox = _PartOf(Outbox)
    run_rows = _PartOf(RunRows)
    checks = _PartOf(InvariantQueries)
    purge = _PartOf(Purge)
    lists = _PartOf(RunLists)
    admission = _PartOf(AdmissionRows)
    feed = _PartOf(Feed)
    forks = _PartOf(Forks)
    result_cache = _PartOf(ResultCache)
    idle_keys = _PartOf(IdleKeys)
    children = _PartOf(Children)
    exchanges = _PartOf(Exchanges)
    driven_runs = _PartOf(DrivenRuns)
    tokens = _PartOf(Tokens)
    schedules = _PartOf(Schedules)
    catalogue = _PartOf(Catalogue)
    worker_limits = _PartOf(WorkerLimits)
    actions = _PartOf(Actions)
    closed = _PartOf(ClosedWorkflows)
    limit_keys = _PartOf(LimitKeys)
    breakers = _PartOf(Breakers)
