"""A whole commit as one PostgreSQL statement.

A round trip costs more than what it carries, and several in one transaction cost that often.
So every section of a commit is a part of one statement. Its rows are given as a JSON text, which
is the quickest way into PostgreSQL for hundreds of them; where there is a row or two, value by
value. A statement commits by itself.

With a guard nothing has to be locked or read beforehand: a run's part is written only if the
run is still at the revision that was evaluated, and every try that is reported is still held.
Of a run for which that does not hold nothing is written, and the answer leaves it out.
A run whose row somebody else has locked counts as moved on: we never wait for a lock here
while we hold another.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql

from flowengine.store.commits import KEPT_WHEN_NOT_GIVEN, CommitRows
from flowengine.store.executing import Executor, Sending
from flowengine.store.listening import CHANNEL
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
from flowengine.store.tasks import IS_HELD

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_TABLES: dict[str, Table] = {
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
        "letters": FactRow,
        "payloads": PayloadRow,
    }.items()
}
#: Columns that every new row has, besides those that are given.
_CONSTANTS = {
    "new_steps": {"superseded": "false"},
    "new_tasks": {"taken_in": "false"},
    "facts": {"taken_in": "false"},
    "letters": {"taken_in": "false"},
}
_INSERTED = {"history", "new_steps", "new_events", "new_tasks", "facts"}
_EXTRA_TYPES = {"was": "integer", "reports": "integer", "to_run": "text"}


def write(run: Executor, rows: CommitRows, *, guarded: bool) -> set[str]:
    """Write a commit; return the runs whose part was written."""
    text, given = _asked(rows, guarded)
    try:
        return {row[0] for row in run.rows(text, given)}
    except Exception as problem:
        if guarded and getattr(problem, "sqlstate", "") == _DIVIDED_BY_NOTHING:
            return set()
        raise


def send(connection: Sending, rows: CommitRows) -> None:
    """Have a commit written of a run that is locked, without waiting for it."""
    connection.send(*_asked(rows, guarded=False))


class _Section(NamedTuple):
    """A section of a statement: how its rows are given."""

    name: str
    few: int = 0  #: so many rows, each value by itself; 0: as JSON
    is_apart: bool = False  #: as JSON, and what the rows share apart


def _asked(rows: CommitRows, guarded: bool) -> tuple[str, list[str | None]]:
    """The statement that writes a commit, and what it is given."""
    filled = [(name, found) for name in _TABLES if (found := getattr(rows, name))]
    for name, found in filled:
        if name not in _COLUMNS:
            _COLUMNS[name] = tuple(found[0])  # all rows of a section have the same
    sections: list[_Section] = []
    given: list[str | None] = []
    if all(len(found) <= _FEW for _, found in filled):
        for name, found in filled:
            sections.append(_Section(name, len(found)))
            # All as text: the kind of a number would be part of the statement, and so of its plan.
            given += [
                value if value is None or type(value) is str else str(value)
                for row in found
                for value in row.values()
            ]
    else:
        for name, found in filled:
            written = _written(name, found)
            sections.append(_Section(name, is_apart=len(written) > 1))
            given += written
    is_alone = len(rows.runs) + len(rows.new_runs) <= 1
    return _statement(tuple(sections), guarded, is_alone), given


#: Where no section has more rows than this, values are given one by one: the step of a chain.
#: To read JSON takes the server a sixth of what it takes to write it. But each number of rows
#: is a statement of its own.
_FEW = 4


def _written(name: str, rows: list[dict[str, object]]) -> list[str]:
    """The rows as JSON: of many, what they all share is written once, and apart."""
    alike = _ALIKE.get(name)
    if alike is None or len(rows) < _MANY:
        return [_json(rows)]
    shared = itemgetter(*alike)
    values = shared(rows[0])
    if any(shared(row) != values for row in rows):
        return [_json(rows)]
    own = [column for column in _COLUMNS[name] if column not in alike]
    nullable = _nullable(name)
    # What is not given is read as NULL, or as nothing of its kind where that cannot be.
    parts = [
        {c: value for c in own if (value := row[c]) or (value is not None and c in nullable)}
        for row in rows
    ]
    return [_json(dict(zip(alike, values, strict=True))), _json(parts)]


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
_DIVIDED_BY_NOTHING = "22012"
_json = json.JSONEncoder(separators=(",", ":")).encode
_COLUMNS: dict[str, tuple[str, ...]] = {}


@functools.cache
def _statement(sections: tuple[_Section, ...], guarded: bool, is_alone: bool) -> str:
    """The statement for these sections, of one run alone or of several.

    There are few kinds of commits, so few statements.
    """
    columns = {section.name: _COLUMNS[section.name] for section in sections}
    parts = [_given(section) for section in sections]
    if is_checked := guarded and is_alone:
        parts += _allowed_alone(columns)
        columns_left = [name for name in columns if name not in ("runs", "reports")]
    else:
        parts += _allowed(columns, guarded)
        columns_left = list(columns)
    parts += [
        f"{name}_w AS ({_write(name, columns[name], _allowed_of(name, is_alone))})"
        for name in columns_left
    ]
    ending = "new_runs_w" if "new_runs" in columns else "ok"
    told = (
        f"CASE WHEN g.finished IS NOT NULL THEN pg_notify('{CHANNEL}', g.run_id) END"
        if "runs" in columns
        else "NULL"
    )
    source = _allowed_of("runs", is_alone) if "runs" in columns else f"{ending} g"
    if is_checked and "reports" in columns:
        source += " JOIN checked ON checked.held = 1"
    which = "g.run_id" if "runs" in columns else "g.id"
    return f"WITH {', '.join(parts)} SELECT {which}, {told} FROM {source}"


def _given(section: _Section) -> str:
    name = section.name

    def typed(columns: Iterable[str]) -> str:
        return ", ".join(f'"{column}" {_type(name, column)}' for column in columns)

    columns = _COLUMNS[name]
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
    nothing = {bool: "false", int: "0"}.get(_TABLES[section].c[column].type.python_type, "''")
    return f'COALESCE(x."{column}", {nothing}) AS "{column}"'


@functools.cache
def _nullable(section: str) -> frozenset[str]:
    return frozenset(column.name for column in _TABLES[section].c if column.nullable)


def _type(section: str, column: str) -> str:
    table = _TABLES[section]
    if column not in table.c:
        return "text" if column == "run_id" else _EXTRA_TYPES[column]
    return str(table.c[column].type.compile(dialect=_DIALECT))


def _allowed(columns: dict[str, tuple[str, ...]], guarded: bool) -> list[str]:
    """The runs whose part may be written: `ok`."""
    if "new_runs" in columns:
        insert = _insert("new_runs", columns["new_runs"], "new_runs_") + _ONCE
        return [f"ok AS ({insert} RETURNING flowengine_run.id)"]
    if not guarded:
        concerned = [name for name in ("runs", "taken_tasks", "taken_facts") if name in columns]
        ids = " UNION ".join(f"SELECT run_id AS id FROM {name}_" for name in concerned)
        return [f"ok AS ({ids})"]
    locked = (
        "locked AS (SELECT t.id, g.reports FROM flowengine_run t JOIN runs_ g ON t.id = g.run_id "
        "WHERE t.revision = g.was ORDER BY t.id FOR UPDATE OF t SKIP LOCKED)"
    )
    if "reports" not in columns:
        return [locked, "ok AS (SELECT id FROM locked)"]
    of_locked = _those("reports", "locked")
    held = (
        f"held AS (SELECT t.run_id FROM flowengine_task t JOIN {of_locked} ON {IS_HELD} "
        "FOR UPDATE OF t)"
    )
    ok = (
        "ok AS (SELECT l.id FROM locked l WHERE ((l.id, l.reports::bigint) IN "
        "(SELECT run_id, count(*) FROM held GROUP BY run_id)) IS TRUE)"
    )
    return [locked, held, ok]


def _allowed_alone(columns: dict[str, tuple[str, ...]]) -> list[str]:
    """The same for one run: its own update and those of its tries are the guard.

    Nothing is looked up twice. A try that is not held any more is an error here, which takes
    the whole statement back.
    """
    run = _update("runs", columns["runs"], _SAME_RUN, {"run_id", "was", "reports"}, "runs_ g")
    parts = [f"ok AS ({run} AND t.revision = g.was RETURNING t.id)"]
    if "reports" not in columns:
        return parts
    leave, source = {"run_id", "uuid", "lease"}, _allowed_of("reports", is_alone=True)
    done = _update("reports", columns["reports"], IS_HELD, leave, source, _TAKEN_IN)
    return [
        *parts,
        f"done AS ({done} RETURNING 1)",
        # Divided by nothing when one is missing, of a run that may be written.
        "checked AS (SELECT 1 / (CASE WHEN (SELECT count(*) FROM done) = g.reports "
        "OR NOT EXISTS (SELECT 1 FROM ok) THEN 1 ELSE 0 END) AS held FROM runs_ g)",
    ]


_SAME_RUN = "t.id = g.run_id"
_ONCE = " ON CONFLICT DO NOTHING"
_TAKEN_IN = ", activity = g.updated, taken_in = true"


def _allowed_of(name: str, is_alone: bool) -> str:
    """The rows of a section that may be written."""
    return f"{name}_ g JOIN ok ON ok.id = g.run_id" if is_alone else _those(name, "ok")


def _those(name: str, runs: str) -> str:
    # Looked up in a hash: as a join it would be one row against every other, for the kinds of
    # joins that could do better are off. `IS TRUE` keeps the planner from making it one.
    return f"(SELECT * FROM {name}_ x WHERE (x.run_id IN (SELECT id FROM {runs})) IS TRUE) g"


def _write(name: str, columns: tuple[str, ...], source: str) -> str:
    match name:
        case "new_runs":
            return "SELECT id FROM ok"
        case "runs":
            return _update(name, columns, _SAME_RUN, {"run_id", "was", "reports"}, source)
        case "reports":
            leave = {"run_id", "uuid", "lease"}
            return _update(name, columns, "t.uuid = g.uuid", leave, source, _TAKEN_IN)
        case "steps":
            return _update(name, columns, "t.id = g.id", {"run_id", "id"}, source)
        case "taken_tasks":
            update = "UPDATE flowengine_task t SET taken_in = true"
            return f"{update} FROM {source} WHERE t.uuid = g.uuid"
        case "taken_facts":
            update = "UPDATE flowengine_fact t SET taken_in = true"
            return f"{update} FROM {source} WHERE t.id = g.id"
        case "payloads":
            return _insert(name, tuple(c for c in columns if c != "run_id"), source) + _ONCE
        case "letters":
            own = tuple(c for c in columns if c != "run_id")  # that of the run that writes
            return _insert(name, own, source, {"to_run": "run_id"}) + _ONCE
        case "joins":
            insert = _insert(name, columns, source)
            more = "flowengine_join.remaining + excluded.remaining"
            return f"{insert} ON CONFLICT (id) DO UPDATE SET remaining = {more}"
        case _:
            assert name in _INSERTED
            return _insert(name, columns, source)


def _update(
    name: str,
    columns: tuple[str, ...],
    where: str,
    leave: set[str],
    source: str,
    more: str = "",
) -> str:
    changed = ", ".join(f'"{c}" = {_new(name, c)}' for c in columns if c not in leave)
    return f"UPDATE {_TABLES[name].name} t SET {changed}{more} FROM {source} WHERE {where}"


def _new(section: str, column: str) -> str:
    kept = (section, column) in KEPT_WHEN_NOT_GIVEN
    return f'COALESCE(g."{column}", t."{column}")' if kept else f'g."{column}"'


def _insert(
    name: str, columns: tuple[str, ...], source: str, renamed: Mapping[str, str] | None = None
) -> str:
    # What is new in a run cannot be there already: nobody else writes while we hold the lock,
    # or the guard. Looking for it nevertheless would cost as much as the insertion.
    constants = _CONSTANTS.get(name, {})
    into = [(renamed or {}).get(column, column) for column in columns]
    names = ", ".join(f'"{column}"' for column in (*into, *constants))
    prefix = "" if name == "new_runs" else "g."
    values = ", ".join([*(f'{prefix}"{column}"' for column in columns), *constants.values()])
    return f"INSERT INTO {_TABLES[name].name} ({names}) SELECT {values} FROM {source}"
