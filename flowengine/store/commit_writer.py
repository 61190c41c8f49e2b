"""Write a commit, in the way that suits the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flowengine.store.commits import CommitPlan
from flowengine.store.executors import Executor, PipelineExecutor
from flowengine.store.postgres import commit as postgres_commit
from flowengine.store.sqlite import commit as sqlite_commit


def write(executor: Executor, rows: CommitPlan, *, guarded: bool = False) -> set[str]:
    """Write a commit; return the runs whose part was written.

    With a guard that is each run that stands where it was evaluated, and whose reported tries
    are held. Without one the caller has locked the run, and all is written.
    """
    _order(rows)
    if executor.is_sqlite:
        return sqlite_commit.write(executor, rows, guarded=guarded)
    return postgres_commit.write(executor, rows, guarded=guarded)


@contextmanager
def streamed(executor: Executor) -> Iterator[Callable[[CommitPlan], object]]:
    """Write several commits of a run that is locked, in its one transaction.

    Where the database is another process, one is written while the next is made. All are
    written at the end.
    """
    if not isinstance(executor, PipelineExecutor):
        yield lambda rows: write(executor, rows)
        return

    def send(rows: CommitPlan) -> None:
        _order(rows)
        postgres_commit.send(executor, rows)

    with executor.sending():
        yield send


def _order(rows: CommitPlan) -> None:
    # In one order: two writers of the same values must not wait for each other.
    rows.payloads.sort(key=lambda payload: payload.hash)
