"""All rows of one run, table by table, for its export."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, select, text

from flowengine.evaluator.records import ID_PREFIX
from flowengine.store import codec
from flowengine.store.parts import Part
from flowengine.store.tables import (
    EventRow,
    FactRow,
    HistoryRow,
    JoinRow,
    LabelRow,
    PayloadRow,
    ProgramRow,
    ReferenceRow,
    RunRow,
    StepRow,
    TaskRow,
    TimerRow,
)

_OF_RUN = (StepRow, TaskRow, EventRow, JoinRow, FactRow, HistoryRow, LabelRow)
#: Columns whose text is a value, as the codec of payloads has stored it.
_VALUES = frozenset(
    {"params", "returns", "error", "failure", "yields", "result", "payload", "outputs", "body"}
)


class RunRows(Part):
    def begin_snapshot(self) -> None:
        """Read everything as of one moment; at the beginning of a transaction."""
        if self._session.dialect.SNAPSHOT:
            self._session.execute(text(self._session.dialect.SNAPSHOT))

    def rows(self, run_id: str) -> dict[str, dict[str, list[Any]]]:
        """Return the columns and rows of each table that has rows of the run."""
        found: dict[str, dict[str, list[Any]]] = {}
        run, timer = RunRow.__table__, TimerRow.__table__
        program, payload = ProgramRow.__table__, PayloadRow.__table__
        reference = ReferenceRow.__table__
        first = run_id[:ID_PREFIX]
        hashes = select(reference.c.hash).where(reference.c.run_id == run_id)
        programs = select(run.c.program_hash).where(run.c.id == run_id)
        queries = [
            (run, run.c.id == run_id),
            *((row.__table__, row.__table__.c.run_id == run_id) for row in _OF_RUN),
            (
                timer,
                (timer.c.id >= first) & (timer.c.id < f"{first}g") & (timer.c.run_id == run_id),
            ),
            (program, program.c.hash.in_(programs)),
            (payload, payload.c.hash.in_(hashes)),
            (reference, reference.c.run_id == run_id),
        ]
        for table, condition in queries:
            rows = self._session.execute(select(table).where(condition)).all()
            if rows:
                columns: list[Any] = [column.name for column in table.columns]
                found[table.name] = {"columns": columns, "rows": _plain(table, columns, rows)}
        return found


def _plain(table: Table, columns: list[str], rows: Any) -> list[list[Any]]:
    is_value = [name in _VALUES and table is not ProgramRow.__table__ for name in columns]
    return [
        [
            codec.opened(value) if value_column and value is not None else value
            for value, value_column in zip(row, is_value, strict=True)
        ]
        for row in rows
    ]
