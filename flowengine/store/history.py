"""The history of runs: read queries."""

from __future__ import annotations

from typing import NamedTuple

from flowengine.store import codec
from flowengine.store.parts import Part

_AFTER = (
    "SELECT revision, at, summary FROM flowengine_history "
    "WHERE run_id = %s AND revision > %s ORDER BY revision LIMIT %s"
)


_LEFT = "SELECT summary FROM flowengine_history WHERE run_id = %s AND summary LIKE %s"


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

    def ended_events(self, run_id: str) -> dict[str, str]:
        """Return by step the states of events that were ended from outside, past their tasks."""
        found: dict[str, str] = {}
        for (summary,) in self._session.rows(_LEFT, (run_id, '%"left"%')):
            for state, step_ids in codec.load(summary).get("left", {}).items():
                found |= dict.fromkeys(step_ids, state)
        return found
