"""Encode the rows of a commit plan for PostgreSQL, and the CTEs that decode them.

JSON is the fastest way in for hundreds of rows, with the columns that all rows share written
once. For the server, decoding it costs a sixth of writing a single row: a few rows of one run are
passed value by value.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy import String
from sqlalchemy.dialects import postgresql

from flowengine.program.compact_json import encoder
from flowengine.store.commit_rows import SECTIONS
from flowengine.store.commits import CommitPlan
from flowengine.store.records import Row

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
#: Columns of a section that its table does not have.
_EXTRA_TYPES = {
    "expected_revision": "integer",
    "reports": "integer",
    "to_run": "text",
    "run_id": "text",
}
_FEW = 4  # each number of rows makes a statement of its own, so this is small
_MANY = 8
#: Columns in which the rows of a fan-out are equal; most columns of a task.
_SHARED = {
    "new_steps": ("run_id", "generation", "created", "updated"),
    "steps": ("run_id", "updated"),
    "new_events": ("run_id", "event_type", "created"),
    "new_tasks": tuple(
        column
        for column in SECTIONS["new_tasks"].columns
        if column not in ("uuid", "step_id", "step_key", "step_path", "position", "join_id")
    ),
}
_json = encoder(allow_nan=True)


class Encoding(NamedTuple):
    """How the rows of a section are passed."""

    section: str
    few: int = 0  #: this many rows, value by value; 0: as JSON
    has_shared: bool = False  #: as JSON, with the shared columns apart


def encode(plan: CommitPlan, *, is_alone: bool) -> tuple[tuple[Encoding, ...], list[str | None]]:
    """Return the encodings of a plan's sections, and the parameters of the statement."""
    filled = plan.filled()
    encodings: list[Encoding] = []
    values: list[str | None] = []
    if is_alone and all(len(rows) <= _FEW for _, rows in filled):
        for name, rows in filled:
            encodings.append(Encoding(name, len(rows)))
            # As text: the type of a number would be part of the statement, and so of its plan.
            values += [
                value if value is None or type(value) is str else str(value)
                for row in rows
                for value in row
            ]
    else:
        for name, rows in filled:
            written = as_json(name, rows)
            encodings.append(Encoding(name, has_shared=len(written) > 1))
            values += written
    return tuple(encodings), values


def as_json(section: str, rows: Sequence[Row]) -> list[str]:
    """Encode rows as JSON; the columns in which many rows are equal come first, once."""
    columns = SECTIONS[section].columns
    if section in _SHARED and len(rows) >= _MANY:
        shared, own = _split(section)
        values = shared(rows[0])
        if all(shared(row) == values for row in rows):
            nullable = _nullable(section)
            # A missing key is decoded as NULL, or as zero or "" where the column is not nullable.
            parts = [
                {
                    column: value
                    for place, column in own
                    if (value := row[place]) or (value is not None and column in nullable)
                }
                for row in rows
            ]
            return [_json(dict(zip(_SHARED[section], values, strict=True))), _json(parts)]
    return [_json([dict(zip(columns, row, strict=True)) for row in rows])]


@functools.cache
def _split(section: str) -> tuple[itemgetter[Row], list[tuple[int, str]]]:
    columns, shared = SECTIONS[section].columns, _SHARED[section]
    own = [(place, column) for place, column in enumerate(columns) if column not in shared]
    return itemgetter(*map(columns.index, shared)), own


def decode(encoding: Encoding) -> str:
    """Return the CTE that decodes a section: a table named like it, with an underscore."""
    name = encoding.section

    def typed(columns: Iterable[str]) -> str:
        return ", ".join(f'"{column}" {_type(name, column)}' for column in columns)

    columns = SECTIONS[name].columns
    if encoding.few == 1:
        # NOT MATERIALIZED: the planner puts the values where they are used, and scans nothing.
        row = ", ".join(f'%s::{_type(name, column)} AS "{column}"' for column in columns)
        return f"{name}_ AS NOT MATERIALIZED (SELECT {row})"
    if encoding.few:
        row = ", ".join(f"%s::{_type(name, column)}" for column in columns)
        rows = ", ".join([f"({row})"] * encoding.few)
        quoted = ", ".join(f'"{column}"' for column in columns)
        return f"{name}_ ({quoted}) AS (VALUES {rows})"
    if not encoding.has_shared:
        rows = f"json_to_recordset(%s::json) AS x({typed(columns)})"
        return f"{name}_ AS (SELECT * FROM {rows})"
    own = [column for column in columns if column not in _SHARED[name]]
    selected = ", ".join(["s.*", *(_decoded(name, column) for column in own)])
    shared = f"json_to_record(%s::json) AS s({typed(_SHARED[name])})"
    rows = f"json_to_recordset(%s::json) AS x({typed(own)})"
    return f"{name}_ AS (SELECT {selected} FROM {shared}, {rows})"


def _decoded(section: str, column: str) -> str:
    if column in _nullable(section):
        return f'x."{column}"'
    kind = SECTIONS[section].table.c[column].type.python_type
    empty = {bool: "false", int: "0"}.get(kind, "''")
    return f'COALESCE(x."{column}", {empty}) AS "{column}"'


@functools.cache
def _nullable(section: str) -> frozenset[str]:
    return frozenset(column.name for column in SECTIONS[section].table.c if column.nullable)


def _type(section: str, column: str) -> str:
    table = SECTIONS[section].table
    if column not in table.c:
        return _EXTRA_TYPES[column]
    kind = table.c[column].type
    # As VARCHAR(n) a text that is too long would be cut off here, and not refused.
    return "text" if isinstance(kind, String) else str(kind.compile(dialect=_DIALECT))
