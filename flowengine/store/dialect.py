"""The SQL in which PostgreSQL and SQLite differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from flowengine.store.commit_rows import Ending
from flowengine.store.commits import CommitPlan
from flowengine.store.executors import Executor


class EncodedReport(NamedTuple):
    """A report as it is stored."""

    task_id: str
    lease: int
    ending: Ending
    payloads: dict[str, str]


class Dialect(Protocol):
    """Fragments and operations of one database; the modules `dialect` of the backends."""

    IDS: str  #: a table `w(value)` of a JSON array of ids
    PAIRS: str  #: a table `w` of a JSON array of objects with run_id and key
    PAIR_RUN: str
    PAIR_KEY: str
    JOIN: str  #: joins `w`, which is read first, with a table that has an index
    LOCK: str
    SKIP_LOCKED: str
    REPORTED_INDEX: str
    CLAIM: str  #: claims the due tasks of a list; with {now} for the time
    CLAIM_THESE: str
    CLOCK: str  #: the database's own clock in milliseconds
    PARK_WAITING: str

    def __hash__(self) -> int: ...

    def listed(self, values: Collection[str]) -> Any:
        """Return names as the parameter of a claim."""

    def commit(self, executor: Executor, plan: CommitPlan, *, guarded: bool) -> set[str]:
        """Write a commit plan; return the runs whose part was written."""

    def stream_commits(
        self, executor: Executor
    ) -> AbstractContextManager[Callable[[CommitPlan], object]]:
        """Return a function that writes a commit; all are written at the end."""

    def record(
        self, executor: Executor, reports: Sequence[EncodedReport], now: int
    ) -> dict[str, int | None]: ...

    def release(
        self, executor: Executor, held: Sequence[tuple[str, int]], now: int
    ) -> list[str]: ...

    def park(
        self, executor: Executor, held: Sequence[tuple[str, int]], due: int, now: int
    ) -> int: ...
