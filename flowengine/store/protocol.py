"""The interface between the engine and its rows.

`engine`, `worker` and the layers above them use a `Store`, and inside its transactions a
`Session`. They do not know which database it is; PostgreSQL and SQLite have a folder each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from sqlalchemy import URL

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


class Session(Protocol):
    """Rows, inside a transaction or operation by operation."""

    def now(self) -> int:
        """Return the time in milliseconds, without a second connection."""

    @property
    def database(self) -> Store:
        """The store that it is a session of."""

    def commit(self, plan: CommitPlan, *, guarded: bool = False) -> set[str]:
        """Write a commit plan; return the runs whose part was written.

        With `guarded` (optimistic commit) the part of a run is written if its revision is
        unchanged and its reported leases are held. Without, the caller holds the run's lock.
        """

    def stream_commits(self) -> AbstractContextManager[Callable[[CommitPlan], object]]:
        """Return a function that writes commits of a locked run, in this transaction."""

    @property
    def runs(self) -> Runs: ...
    @property
    def agent_heads(self) -> AgentHeads: ...
    @property
    def agent_inbox(self) -> AgentInbox: ...
    @property
    def agent_joins(self) -> AgentJoins: ...
    @property
    def agent_lists(self) -> AgentLists: ...
    @property
    def agent_purge(self) -> AgentPurge: ...
    @property
    def agent_turns(self) -> AgentTurns: ...
    @property
    def calls(self) -> Calls: ...
    @property
    def cards(self) -> Cards: ...
    @property
    def function_steps(self) -> FunctionSteps: ...
    @property
    def run_keys(self) -> RunKeys: ...
    @property
    def sealed_values(self) -> SealedValues: ...
    @property
    def steps(self) -> Steps: ...
    @property
    def tasks(self) -> Tasks: ...
    @property
    def claims(self) -> Claims: ...
    @property
    def due_tasks(self) -> DueTasks: ...
    @property
    def reports(self) -> Reports: ...
    @property
    def inbox(self) -> Inbox: ...
    @property
    def history(self) -> History: ...
    @property
    def payloads(self) -> Payloads: ...
    @property
    def recovery(self) -> RecoveryQueries: ...
    @property
    def servers(self) -> Servers: ...
    @property
    def locks(self) -> Locks: ...
    @property
    def logs(self) -> Logs: ...
    @property
    def work_locks(self) -> WorkLocks: ...
    @property
    def lists(self) -> RunLists: ...
    @property
    def purge(self) -> Purge: ...
    @property
    def run_rows(self) -> RunRows: ...
    @property
    def checks(self) -> InvariantQueries: ...
    @property
    def outbox(self) -> Outbox: ...
    @property
    def outbox_rule(self) -> OutboxRule | None: ...
    @property
    def poller_notes(self) -> PollerNotes | None: ...
    @property
    def waits(self) -> WaitQueries: ...
    @property
    def admission(self) -> AdmissionRows: ...
    @property
    def feed(self) -> Feed: ...
    @property
    def forks(self) -> Forks: ...
    @property
    def result_cache(self) -> ResultCache: ...
    @property
    def idle_keys(self) -> IdleKeys: ...
    @property
    def children(self) -> Children: ...
    @property
    def exchanges(self) -> Exchanges: ...
    @property
    def driven_runs(self) -> DrivenRuns: ...
    @property
    def tokens(self) -> Tokens: ...
    @property
    def schedules(self) -> Schedules: ...
    @property
    def catalogue(self) -> Catalogue: ...
    @property
    def worker_limits(self) -> WorkerLimits: ...
    @property
    def actions(self) -> Actions: ...
    @property
    def closed(self) -> ClosedWorkflows: ...
    @property
    def limit_keys(self) -> LimitKeys: ...
    @property
    def breakers(self) -> Breakers: ...


class CompletionListener(Protocol):
    """A subscription to the ends of runs, or to due tasks, in all processes."""

    is_listening: bool

    def stop(self) -> None: ...


class ServerLock(Protocol):
    """A lock that a server holds as long as its process lives."""

    def hold(self, *, verify: bool = False) -> str | None:
        """Acquire the lock if it is not held; return its token, None without a lock.

        With `verify` the database is asked whether this session still has it.
        """

    def beat(self, server_id: str) -> bool:
        """Record a heartbeat through the lock's own session; False if a full one is needed."""

    def release(self) -> None: ...


class Store(Protocol):
    """A database of runs. The same call has the same transaction semantics on each database."""

    has_server: bool  #: shared by processes of several versions; a statement is a round trip
    file: Path | None  #: of a database in a file
    outbox_rule: OutboxRule | None  #: the outcomes that commits have delivered
    poller_notes: PollerNotes | None  #: the pollers that commits notify

    @property
    def generation(self) -> int:
        """Changes when committed rows may be gone: a backup may have been restored meanwhile."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> URL:
        """Its address, with the password: to compare and to redact it. `name` is for people."""

    def now(self) -> int:
        """Return the time in milliseconds; a server's own clock, so that all workers agree.

        Inside a transaction use the session's `now`, which needs no second connection.
        """

    def read(self) -> AbstractContextManager[Session]:
        """One transaction that only reads."""

    def write(self) -> AbstractContextManager[Session]:
        """One transaction that may write; committed at the end, rolled back on an error."""

    def autocommit(self) -> AbstractContextManager[Session]:
        """Operations that commit by themselves, one after the other."""

    def limited_read(self, seconds: float) -> AbstractContextManager[Session]:
        """One transaction that only reads, and fails if it takes longer."""

    def autocommit_read(self) -> AbstractContextManager[Session]:
        """Read operations without a common snapshot: the cheapest query."""

    def optimistic(self) -> AbstractContextManager[Session]:
        """Reads that are followed by a guarded commit.

        The reads are not isolated from other writers: the guard refuses a commit that they made
        stale. SQLite has one writer at a time, so there the session holds the write lock.
        """

    def within(
        self, executor: Executor, errors: type[Exception]
    ) -> AbstractContextManager[Session]:
        """A session inside the caller's own transaction, whose statements raise `errors`."""

    def keep_connection(self) -> AbstractContextManager[None]:
        """Let this thread keep its connection between statements."""

    def return_connection(self) -> None:
        """Return this thread's connection to the pool until it needs one again."""

    def listen(
        self, on_end: Callable[[str], object], on_connect: Callable[[], object]
    ) -> CompletionListener | None:
        """Subscribe to the ends of runs; None if the database cannot notify.

        `on_connect` is called after each connection: notifications before it are lost.
        """

    def listen_for_events(
        self, on_commit: Callable[[str], object], on_connect: Callable[[], object]
    ) -> CompletionListener | None:
        """Subscribe to commits that the feed is to have; None if the database cannot notify."""

    def listen_for_tasks(
        self, on_due: Callable[[str], object], on_connect: Callable[[], object]
    ) -> CompletionListener | None:
        """Subscribe to the texts of `notify_pollers`; None if the database cannot notify."""

    def notify_pollers(self, text: str) -> None:
        """Send a text to all pollers that listen; does nothing if the database cannot notify."""

    def server_lock(self) -> ServerLock | None:
        """Return a lock for the server of this process; None if the database has no sessions."""

    def close(self) -> None: ...
