"""Write a commit, in the way that suits the database."""

from __future__ import annotations

from flowengine.store import in_turn, one_statement
from flowengine.store.commits import CommitRows
from flowengine.store.executing import Executor


def write(executor: Executor, rows: CommitRows, *, guarded: bool = False) -> set[str]:
    """Write a commit; return the runs whose part was written.

    With a guard that is each run that stands where it was evaluated, and whose reported tries
    are held. Without one the caller has locked the run, and all is written.
    """
    # In one order: two writers of the same values must not wait for each other.
    rows.payloads.sort(key=lambda row: row["hash"])
    if executor.is_sqlite:
        return in_turn.write(executor, rows, guarded=guarded)
    return one_statement.write(executor, rows, guarded=guarded)
