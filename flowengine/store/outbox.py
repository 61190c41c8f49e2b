"""The outbox: commits whose outcomes are to be delivered, and notices.

A notice is of no commit: an alarm of a run, or a schedule that has stopped. Its revision is
negative and says which; there is one of each kind of a run at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowengine.evaluator.records import derived_id
from flowengine.store.parts import Part
from flowengine.store.tables import OUTBOX_IS_DUE

# In order for each run and sink: a later commit waits while an earlier one is to be delivered.
_DUE = (
    "SELECT o.run_id, o.sink, o.revision, o.created, o.tries FROM flowengine_outbox o "
    f"WHERE o.{OUTBOX_IS_DUE} AND o.due <= %s AND o.sink = %s AND NOT EXISTS (SELECT 1 "
    "FROM flowengine_outbox e WHERE e.run_id = o.run_id AND e.sink = o.sink "
    f"AND e.revision < o.revision AND e.{OUTBOX_IS_DUE}) ORDER BY o.due LIMIT %s"
)
_PENDING = f"SELECT 1 FROM flowengine_outbox o WHERE o.{OUTBOX_IS_DUE} AND o.sink = %s LIMIT 1"
# With the time: a notice that has begun anew since it was read is another one.
_ROW = "run_id = %s AND sink = %s AND revision = %s AND created = %s"
_DELIVERED = f"DELETE FROM flowengine_outbox WHERE {_ROW} RETURNING 1"
_POSTPONE = (
    f"UPDATE flowengine_outbox SET tries = tries + 1, due = %s, error = %s WHERE {_ROW} RETURNING 1"
)
_NOTE = (
    "INSERT INTO flowengine_outbox (run_id, sink, revision, due, tries, created) VALUES {} "
    "ON CONFLICT (run_id, sink, revision) DO UPDATE SET due = excluded.due, tries = 0, "
    "error = NULL, created = excluded.created RETURNING 1"
)
_PER_STATEMENT = 100

RUN_ALARM, SCHEDULE_STOPPED = -1, -2  #: revisions of notices


class Entry(NamedTuple):
    run_id: str
    sink: str
    revision: int
    created: int
    tries: int


def id_of_schedule(tenant: str, name: str) -> str:
    """Return the id that a notice of a schedule has in place of a run's."""
    return derived_id("schedule", tenant, name)


class Outbox(Part):
    def due(self, sink: str, now: int, most: int) -> list[Entry]:
        """Return the next entry of each run that has a due one."""
        return [Entry(*row) for row in self._session.rows(_DUE, (now, sink, most))]

    def is_pending(self, sink: str) -> bool:
        return bool(self._session.rows(_PENDING, (sink,)))

    def add_notices(
        self, run_ids: Sequence[str], kind: int, sinks: Sequence[str], now: int
    ) -> None:
        """Have notices delivered; one that is not delivered yet is replaced."""
        rows = [(run_id, sink, kind, now, 0, now) for run_id in run_ids for sink in sinks]
        for start in range(0, len(rows), _PER_STATEMENT):
            part = rows[start : start + _PER_STATEMENT]
            marks = ", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(part))
            self._session.rows(_NOTE.format(marks), tuple(v for row in part for v in row))

    def delivered(self, entry: Entry) -> None:
        self._session.rows(_DELIVERED, entry[:4])

    def postpone(self, entry: Entry, due: int | None, error: str) -> None:
        """Deliver again at `due`; None: give up."""
        self._session.rows(_POSTPONE, (due, error, *entry[:4]))
