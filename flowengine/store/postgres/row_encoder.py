"""How the rows of a commit are given to PostgreSQL, and how a statement reads them.

JSON is the quickest way in for hundreds of rows, and what they all share is written once. To read
it takes the server a sixth of what it takes to write a single row: where one run has a few rows
they are given value by value.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy import String, Table
from sqlalchemy.dialects import postgresql

from flowengine.store.commits import CommitRows
from flowengine.store.tables import (
    EventRow,
    FactRow,
    HistoryRow,
    JoinRow,
    PayloadRow,
    RunRow,
    StepRow,
    TaskRow,
)

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
#: The sections, in the order in which they are given.
TABLES: dict[str, Table] = {
    name: row.__table__  # type: ignore[attr-defined]
    for name, row in {
        "new_runs": RunRow,
        "runs": RunRow,
        "history": HistoryRow,
        "reports": TaskRow,
        "new_steps": StepRow,
        "steps": StepRow,
        "new_events": EventRow,
        "joins": JoinRow,
        "new_tasks": TaskRow,
        "taken_tasks": TaskRow,
        "facts": FactRow,
        "taken_facts": FactRow,
        "parent_facts": FactRow,
        "payloads": PayloadRow,
    }.items()
}
COLUMNS: dict[str, tuple[str, ...]] = {}  #: of each section, as its rows have them
_EXTRA_TYPES = {"was": "integer", "reports": "integer", "to_run": "text"}

_FEW = 4  # each number of rows makes a statement of its own, so this is little
_MANY = 8
#: What the rows of a fan-out have in common; most of what there is to say of a task.
_ALIKE = {
    "new_steps": ("run_id", "generation", "created", "updated"),
    "steps": ("run_id", "updated"),
    "new_events": ("run_id", "event_type", "created"),
    "new_tasks": (
        *("run_id", "program_hash", "name", "short_name", "task_list_name", "data_type"),
        *("try_number", "losses", "lease", "state", "rank", "due", "timeout_ms", "runs_once"),
        *("limit_key", "started", "activity", "server_id", "boot_id", "pid"),
        *("created", "updated"),
    ),
}
_json = json.JSONEncoder(separators=(",", ":")).encode


class Section(NamedTuple):
    """A section of a statement: how its rows are given."""

    name: str
    few: int = 0  #: so many rows, each value by itself; 0: as JSON
    is_apart: bool = False  #: as JSON, and what the rows share apart


def give(rows: CommitRows, *, is_alone: bool) -> tuple[tuple[Section, ...], list[str | None]]:
    """The sections of a commit, and what the statement is given for them."""
    filled = [(name, found) for name in TABLES if (found := getattr(rows, name))]
    for name, found in filled:
        if name not in COLUMNS:
            COLUMNS[name] = tuple(found[0])  # all rows of a section have the same
    sections: list[Section] = []
    values: list[str | None] = []
    if is_alone and all(len(found) <= _FEW for _, found in filled):
        for name, found in filled:
            sections.append(Section(name, len(found)))
            # All as text: the kind of a number would be part of the statement, and so of its plan.
            values += [
                value if value is None or type(value) is str else str(value)
                for row in found
                for value in row.values()
            ]
    else:
        for name, found in filled:
            written = _written(name, found)
            sections.append(Section(name, is_apart=len(written) > 1))
            values += written
    return tuple(sections), values


def _written(name: str, rows: list[dict[str, object]]) -> list[str]:
    """The rows as JSON: of many, what they all share is written once, and apart."""
    alike = _ALIKE.get(name)
    if alike is None or len(rows) < _MANY:
        return [_json(rows)]
    shared = itemgetter(*alike)
    values = shared(rows[0])
    if any(shared(row) != values for row in rows):
        return [_json(rows)]
    own = [column for column in COLUMNS[name] if column not in alike]
    nullable = _nullable(name)
    # What is not given is read as NULL, or as nothing of its kind where that cannot be.
    parts = [
        {c: value for c in own if (value := row[c]) or (value is not None and c in nullable)}
        for row in rows
    ]
    return [_json(dict(zip(alike, values, strict=True))), _json(parts)]


def read(section: Section) -> str:
    """The part of a statement that reads a section: a table of its name and an underscore."""
    name = section.name

    def typed(columns: Iterable[str]) -> str:
        return ", ".join(f'"{column}" {_type(name, column)}' for column in columns)

    columns = COLUMNS[name]
    if section.few == 1:
        # So written that the planner puts the values where they are used, and scans nothing.
        row = ", ".join(f'%s::{_type(name, column)} AS "{column}"' for column in columns)
        return f"{name}_ AS NOT MATERIALIZED (SELECT {row})"
    if section.few:
        row = ", ".join(f"%s::{_type(name, column)}" for column in columns)
        rows = ", ".join([f"({row})"] * section.few)
        return f"{name}_ ({', '.join(map(_quoted, columns))}) AS (VALUES {rows})"
    if not section.is_apart:
        rows = f"json_to_recordset(%s::json) AS x({typed(columns)})"
        return f"{name}_ AS (SELECT * FROM {rows})"
    alike = _ALIKE[name]
    own = [column for column in columns if column not in alike]
    read = ", ".join(["s.*", *(_read(name, column) for column in own)])
    shared = f"json_to_record(%s::json) AS s({typed(alike)})"
    rows = f"json_to_recordset(%s::json) AS x({typed(own)})"
    return f"{name}_ AS (SELECT {read} FROM {shared}, {rows})"


def _quoted(column: str) -> str:
    return f'"{column}"'


def _read(section: str, column: str) -> str:
    if column in _nullable(section):
        return f'x."{column}"'
    nothing = {bool: "false", int: "0"}.get(TABLES[section].c[column].type.python_type, "''")
    return f'COALESCE(x."{column}", {nothing}) AS "{column}"'


@functools.cache
def _nullable(section: str) -> frozenset[str]:
    return frozenset(column.name for column in TABLES[section].c if column.nullable)


def _type(section: str, column: str) -> str:
    table = TABLES[section]
    if column not in table.c:
        return "text" if column == "run_id" else _EXTRA_TYPES[column]
    kind = table.c[column].type
    # As VARCHAR(n) a text that is too long would be cut off here, and not refused.
    return "text" if isinstance(kind, String) else str(kind.compile(dialect=_DIALECT))
