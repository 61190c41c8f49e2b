"""The history of runs: read queries."""

from __future__ import annotations

from typing import NamedTuple

from flowengine.store.parts import Part

_AFTER = (
    "SELECT revision, at, summary FROM flowengine_history "
    "WHERE run_id = %s AND revision > %s ORDER BY revision LIMIT %s"
)


class StoredEntry(NamedTuple):
    revision: int
    at: int
    summary: str


class History(Part):
    def after(self, run_id: str, revision: int, limit: int) -> list[StoredEntry]:
        """Return the entries of a run behind a revision, in order.

        A revision is committed before the next one is written, and this is one statement: the
        entries have no gaps.
        """
        return [StoredEntry(*row) for row in self._session.rows(_AFTER, (run_id, revision, limit))]
