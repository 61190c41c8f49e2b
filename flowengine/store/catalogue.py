"""The catalogue: workflows that can be started by name. In a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowengine.store.parts import Part


class WorkflowRecord(NamedTuple):
    """A stored workflow."""

    name: str
    program_hash: str | None
    digest: str
    source: str
    place: str
    description: str
    inputs: str
    problems: str | None
    created: int
    updated: int


_COLUMNS = ", ".join(WorkflowRecord._fields)
_MARKS = ", ".join(["%s"] * len(WorkflowRecord._fields))
_CHANGED = [name for name in WorkflowRecord._fields if name not in ("name", "created")]
_SELECT = f"SELECT {_COLUMNS} FROM flowengine_workflow"
_PUT = (
    f"INSERT INTO flowengine_workflow ({_COLUMNS}) VALUES ({_MARKS}) ON CONFLICT (name) DO UPDATE "
    f"SET {', '.join(f'{name} = excluded.{name}' for name in _CHANGED)} RETURNING name"
)
# Broken content keeps the program of the last version without problems.
_PUT_PROBLEMS = (
    f"INSERT INTO flowengine_workflow ({_COLUMNS}) VALUES ({_MARKS}) ON CONFLICT (name) DO UPDATE "
    "SET problems = excluded.problems, digest = excluded.digest, place = excluded.place, "
    "source = excluded.source, updated = excluded.updated RETURNING name"
)


class Catalogue(Part):
    def get(self, name: str) -> WorkflowRecord | None:
        rows = self._session.rows(f"{_SELECT} WHERE name = %s", (name,))
        return WorkflowRecord(*rows[0]) if rows else None

    def page(self, after: str, most: int) -> list[WorkflowRecord]:
        """Return workflows by name."""
        text = f"{_SELECT} WHERE name > %s ORDER BY name LIMIT %s"
        rows = self._session.rows(text, (after, most))
        return [WorkflowRecord(*row) for row in rows]

    def names(self, most: int) -> list[str]:
        text = "SELECT name FROM flowengine_workflow ORDER BY name LIMIT %s"
        return [row[0] for row in self._session.rows(text, (most,))]

    def digests(self, names: Sequence[str], source: str, below: str) -> dict[str, str]:
        """Return the digests of these workflows, and of those of a source below a place."""
        marks = ", ".join(["%s"] * len(names)) or "NULL"
        text = (
            f"SELECT name, digest FROM flowengine_workflow WHERE name IN ({marks}) "
            "OR (source = %s AND substr(place, 1, %s) = %s)"
        )
        return dict(self._session.rows(text, (*names, source, len(below), below)))

    def sources(self, names: Sequence[str]) -> dict[str, str]:
        """Return the sources of these workflows, by name."""
        marks = ", ".join(["%s"] * len(names)) or "NULL"
        text = f"SELECT name, source FROM flowengine_workflow WHERE name IN ({marks})"
        return dict(self._session.rows(text, tuple(names)))

    def put(self, record: WorkflowRecord) -> None:
        """Store a workflow; one of the same name is replaced."""
        text = _PUT if record.program_hash is not None else _PUT_PROBLEMS
        self._session.rows(text, tuple(record))

    def remove(self, name: str) -> bool:
        """Remove a workflow; its runs stay."""
        text = "DELETE FROM flowengine_workflow WHERE name = %s RETURNING name"
        return bool(self._session.rows(text, (name,)))

    def remove_below(self, name: str, source: str, below: str) -> bool:
        """Remove a workflow if it still is one of that source below that place."""
        text = (
            "DELETE FROM flowengine_workflow WHERE name = %s AND source = %s "
            "AND substr(place, 1, %s) = %s RETURNING name"
        )
        return bool(self._session.rows(text, (name, source, len(below), below)))
