"""The outbox: commits whose outcomes are to be delivered."""

from __future__ import annotations

from typing import NamedTuple

from flowengine.store.parts import Part
from flowengine.store.tables import OUTBOX_IS_DUE

# In order for each run and sink: a later commit waits while an earlier one is to be delivered.
_DUE = (
    "SELECT o.run_id, o.sink, o.revision, o.tries FROM flowengine_outbox o "
    f"WHERE o.{OUTBOX_IS_DUE} AND o.due <= %s AND o.sink = %s AND NOT EXISTS (SELECT 1 "
    "FROM flowengine_outbox e WHERE e.run_id = o.run_id AND e.sink = o.sink "
    f"AND e.revision < o.revision AND e.{OUTBOX_IS_DUE}) ORDER BY o.due LIMIT %s"
)
_PENDING = f"SELECT 1 FROM flowengine_outbox o WHERE o.{OUTBOX_IS_DUE} AND o.sink = %s LIMIT 1"
_ROW = "run_id = %s AND sink = %s AND revision = %s"
_DELIVERED = f"DELETE FROM flowengine_outbox WHERE {_ROW} RETURNING 1"
_POSTPONE = (
    f"UPDATE flowengine_outbox SET tries = tries + 1, due = %s, error = %s WHERE {_ROW} RETURNING 1"
)


class Entry(NamedTuple):
    run_id: str
    sink: str
    revision: int
    tries: int


class Outbox(Part):
    def due(self, sink: str, now: int, most: int) -> list[Entry]:
        """Return the next entry of each run that has a due one."""
        return [Entry(*row) for row in self._session.rows(_DUE, (now, sink, most))]

    def is_pending(self, sink: str) -> bool:
        return bool(self._session.rows(_PENDING, (sink,)))

    def delivered(self, entry: Entry) -> None:
        self._session.rows(_DELIVERED, entry[:3])

    def postpone(self, entry: Entry, due: int | None, error: str) -> None:
        """Deliver again at `due`; None: give up."""
        self._session.rows(_POSTPONE, (due, error, *entry[:3]))
