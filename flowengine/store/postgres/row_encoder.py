"""Encode the rows of a commit plan for PostgreSQL, and the CTEs that decode them.

JSON is the fastest way in for hundreds of rows, with the columns that all rows share written
once. For the server, decoding it costs a sixth of writing a single row: a few rows of one run are
passed value by value. Columns in which all rows have their usual value, such as an absent error,
are not passed: the CTE has that value as a constant.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy import String
from sqlalchemy.dialects import postgresql

from flowengine.program.compact_json import encoder
from flowengine.store import commit_rows
from flowengine.store.agent_rows import AGENT_SECTIONS
from flowengine.store.commits import CommitPlan
from flowengine.store.records import Row
from flowengine.store.usual_values import USUAL

SECTIONS = {**commit_rows.SECTIONS, **AGENT_SECTIONS}
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
#: Columns of a section that its table does not have.
_EXTRA_TYPES = {
    "expected_revision": "integer",
    "reports": "integer",
    "to_run": "text",
    "run_id": "text",
    "expected_epoch": "bigint",
    "expected_turn": "text",
    "expected_events": "bigint",
    "expected_entered": "integer",
    "expected_status": "text",
    "messages": "text",
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
    is_usual: bool = False  #: without the columns in which all rows have their usual value


def encode(plan: CommitPlan, *, is_alone: bool) -> tuple[tuple[Encoding, ...], list[str | None]]:
    """Return the encodings of a plan's sections, and the parameters of the statement."""
    filled = plan.filled()
    encodings: list[Encoding] = []
    values: list[str | None] = []
    are_few = is_alone and max([len(rows) for _, rows in filled], default=0) <= _FEW
    for name, rows in filled:
        is_usual = name in USUAL and _are_usual(name, rows)
        if not are_few:
            written = as_json(name, rows, is_usual=is_usual)
            encodings.append(Encoding(name, 0, len(written) > 1, is_usual))
            values += written
            continue
        encodings.append(Encoding(name, len(rows), False, is_usual))
        if is_usual:
            rows = list(map(_unusual_values(name), rows))
        # As text: the type of a number would be part of the statement, and so of its plan.
        values += [
            value if type(value) is str or value is None else str(value)
            for row in rows
            for value in row
        ]
    return tuple(encodings), values


def as_json(section: str, rows: Sequence[Row], *, is_usual: bool = False) -> list[str]:
    """Encode rows as JSON; the columns in which many rows are equal come first, once."""
    if section in _SHARED and len(rows) >= _MANY:
        names, shared, own = _split(section, is_usual)
        values = shared(rows[0])
        if {*map(shared, rows)} == {values}:
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
            return [_json(dict(zip(names, values, strict=True))), _json(parts)]
    columns = _passed(section, is_usual)
    if is_usual:
        rows = list(map(_unusual_values(section), rows))
    return [_json([dict(zip(columns, row, strict=True)) for row in rows])]


def _are_usual(section: str, rows: Sequence[Row]) -> bool:
    values, usual = _usual_values(section)
    return {*map(values, rows)} == usual


@functools.cache
def _usual_values(section: str) -> tuple[itemgetter[Row], set[Row]]:
    """Return how to get the values of a row that may be usual, and the usual ones."""
    usual = USUAL[section]
    return _values_of(section, tuple(usual)), {tuple(usual.values())}


@functools.cache
def _unusual_values(section: str) -> itemgetter[Row]:
    return _values_of(section, _passed(section, is_usual=True))


def _values_of(section: str, columns: Sequence[str]) -> itemgetter[Row]:
    return itemgetter(*map(SECTIONS[section].columns.index, columns))


@functools.cache
def _passed(section: str, is_usual: bool) -> tuple[str, ...]:
    columns = SECTIONS[section].columns
    return tuple(c for c in columns if c not in USUAL[section]) if is_usual else columns


@functools.cache
def _split(
    section: str, is_usual: bool
) -> tuple[tuple[str, ...], itemgetter[Row], list[tuple[int, str]]]:
    """Return the names of the shared columns, their values in a row, and the other columns."""
    columns, passed = SECTIONS[section].columns, _passed(section, is_usual)
    shared = tuple(column for column in _SHARED[section] if column in passed)
    own = [(columns.index(column), column) for column in passed if column not in shared]
    return shared, _values_of(section, shared), own


def decode(encoding: Encoding) -> str:
    """Return the CTE that decodes a section: a table named like it, with an underscore."""
    name = encoding.section

    def typed(columns: Iterable[str]) -> str:
        return ", ".join(f'"{column}" {_type(name, column)}' for column in columns)

    columns, passed = SECTIONS[name].columns, _passed(name, encoding.is_usual)
    constants = USUAL[name] if encoding.is_usual else {}
    row = [
        f"{_LITERALS[constants[column]] if column in constants else '%s'}::{_type(name, column)}"
        for column in columns
    ]
    if encoding.few == 1:
        # NOT MATERIALIZED: the planner puts the values where they are used, and scans nothing.
        named = [f'{value} AS "{column}"' for value, column in zip(row, columns, strict=True)]
        return f"{name}_ AS NOT MATERIALIZED (SELECT {', '.join(named)})"
    if encoding.few:
        rows = ", ".join([f"({', '.join(row)})"] * encoding.few)
        quoted = ", ".join(f'"{column}"' for column in columns)
        return f"{name}_ ({quoted}) AS (VALUES {rows})"
    usual = [
        f'{_LITERALS[value]}::{_type(name, column)} AS "{column}"'
        for column, value in constants.items()
    ]
    if not encoding.has_shared:
        rows = f"json_to_recordset(%s::json) AS x({typed(passed)})"
        return f"{name}_ AS (SELECT {', '.join(['x.*', *usual])} FROM {rows})"
    names, _, places = _split(name, encoding.is_usual)
    own = [column for _, column in places]
    selected = ", ".join(["s.*", *(_decoded(name, column) for column in own), *usual])
    shared = f"json_to_record(%s::json) AS s({typed(names)})"
    rows = f"json_to_recordset(%s::json) AS x({typed(own)})"
    return f"{name}_ AS (SELECT {selected} FROM {shared}, {rows})"


#: The usual values in SQL. False and 0 are one key: the cast makes the same value of both.
_LITERALS: dict[str | int | None, str] = {None: "NULL", "": "''", 0: "0"}


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
