"""A whole commit as one PostgreSQL statement.

A round trip costs more than what it carries, and several in one transaction cost that often.
So every section of a commit is a part of one statement (how it is given: `giving`). A statement
commits by itself.

With a guard nothing has to be locked or read beforehand: a run's part is written only if the
run is still at the revision that was evaluated, and every try that is reported is still held.
Of a run for which that does not hold nothing is written, and the answer leaves it out.
A run whose row somebody else has locked counts as moved on: we never wait for a lock here
while we hold another.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from flowengine.store.commits import KEPT_WHEN_NOT_GIVEN, CommitRows
from flowengine.store.executors import Executor, PipelineExecutor, PostgresExecutor
from flowengine.store.listener import CHANNEL
from flowengine.store.postgres import row_encoder
from flowengine.store.postgres.row_encoder import COLUMNS, TABLES
from flowengine.store.tasks import IS_HELD

#: Columns that every new row has, besides those that are given.
_CONSTANTS = {
    "new_steps": {"superseded": "false"},
    "new_tasks": {"taken_in": "false"},
    "facts": {"taken_in": "false"},
    "parent_facts": {"taken_in": "false"},
}
_INSERTED = {"history", "new_steps", "new_events", "new_tasks", "facts"}


def write(run: Executor, rows: CommitRows, *, guarded: bool) -> set[str]:
    """Write a commit; return the runs whose part was written."""
    text, given = _asked(rows, guarded)
    try:
        if isinstance(run, PostgresExecutor):
            return set(run.fetch_text_column(text, given))
        return {row[0] for row in run.rows(text, given)}
    except Exception as problem:
        if guarded and getattr(problem, "sqlstate", "") == _DIVIDED_BY_NOTHING:
            return set()
        raise


def send(connection: PipelineExecutor, rows: CommitRows) -> None:
    """Have a commit written of a run that is locked, without waiting for it."""
    connection.send(*_asked(rows, guarded=False))


def _asked(rows: CommitRows, guarded: bool) -> tuple[str, list[str | None]]:
    """The statement that writes a commit, and what it is given."""
    is_alone = len(rows.runs) + len(rows.new_runs) <= 1
    sections, values = row_encoder.give(rows, is_alone=is_alone)
    return _statement(sections, guarded, is_alone), values


_DIVIDED_BY_NOTHING = "22012"


@functools.cache
def _statement(sections: tuple[row_encoder.Section, ...], guarded: bool, is_alone: bool) -> str:
    """The statement for these sections, of one run alone or of several.

    There are few kinds of commits, so few statements.
    """
    columns = {section.name: COLUMNS[section.name] for section in sections}
    parts = [row_encoder.read(section) for section in sections]
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
        case "parent_facts":
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
    return f"UPDATE {TABLES[name].name} t SET {changed}{more} FROM {source} WHERE {where}"


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
    return f"INSERT INTO {TABLES[name].name} ({names}) SELECT {values} FROM {source}"
