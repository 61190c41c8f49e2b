"""A commit written section by section, in a transaction that has the database for itself.

SQLite has one writer at a time and no round trips: here many short statements are quick, and
the guard is a look at the run before its part is written.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

from flowengine.store.commits import KEPT_WHEN_NOT_GIVEN, CommitRows, Rows
from flowengine.store.executors import Executor

_IS_CURRENT = "SELECT revision = ? FROM flowengine_run WHERE id = ?"
_IS_HELD = "SELECT count(*) FROM flowengine_task WHERE uuid = ? AND lease = ? AND state = 'running'"
_TABLES = {
    "history": "flowengine_history",
    "new_steps": "flowengine_step",
    "new_events": "flowengine_event",
    "new_tasks": "flowengine_task",
    "facts": "flowengine_fact",
    "steps": "flowengine_step",
    "reports": "flowengine_task",
    "runs": "flowengine_run",
}
_CONSTANTS = {
    "new_steps": {"superseded": "0"},
    "new_tasks": {"taken_in": "0"},
    "facts": {"taken_in": "0"},
}


def write(run: Executor, rows: CommitRows, *, guarded: bool) -> set[str]:
    """Write a commit; return the runs whose part was written."""
    if rows.new_runs:
        allowed = {row["id"] for row in rows.new_runs if _insert_run(run, row)}
    elif guarded:
        allowed = _allowed(run, rows)
    else:
        allowed = {row["run_id"] for row in rows.runs}
    is_whole = not guarded and (not rows.new_runs or len(allowed) == len(rows.new_runs))

    def of(section: Rows) -> Rows:
        return section if is_whole else [row for row in section if row["run_id"] in allowed]

    for name in ("new_steps", "new_events", "new_tasks", "facts", "history"):
        _many(run, _insert, name, of(getattr(rows, name)))
    for name in ("steps", "reports"):
        _many(run, _update, name, of(getattr(rows, name)))
    if found := of(rows.parent_facts):
        run.many(_LETTER, found)
    if found := of(rows.payloads):
        run.many(_PAYLOAD, found)
    _many(run, _update, "runs", of(rows.runs))
    if found := of(rows.joins):
        run.many(_JOIN, found)
    if found := of(rows.taken_tasks):
        run.many("UPDATE flowengine_task SET taken_in = 1 WHERE uuid = :uuid", found)
    if found := of(rows.taken_facts):
        run.many("UPDATE flowengine_fact SET taken_in = 1 WHERE id = :id", found)
    return allowed


def _allowed(run: Executor, rows: CommitRows) -> set[str]:
    current = {
        row["run_id"]
        for row in rows.runs
        if run.rows(_IS_CURRENT, (row["was"], row["run_id"])) == [(1,)]
    }
    for report in rows.reports:
        if run.rows(_IS_HELD, (report["uuid"], report["lease"])) != [(1,)]:
            current.discard(report["run_id"])
    return current


def _insert_run(run: Executor, row: dict[str, Any]) -> bool:
    columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
    text = f"INSERT OR IGNORE INTO flowengine_run ({columns}) VALUES ({values}) RETURNING id"
    return bool(run.rows(text, row))


def _many(run: Executor, build: Any, name: str, found: Rows) -> None:
    # Rows of one section have the same columns, and each is given by its place: to look up a
    # column's name takes SQLite's driver longer than to bind its value.
    if found:
        run.many(build(name, tuple(found[0])), [tuple(row.values()) for row in found])


@functools.cache
def _insert(name: str, columns: tuple[str, ...]) -> str:
    constants = _CONSTANTS.get(name, {})
    names = ", ".join(itertools.chain(columns, constants))
    places = (f"?{place}" for place in range(1, len(columns) + 1))
    values = ", ".join(itertools.chain(places, constants.values()))
    return f"INSERT INTO {_TABLES[name]} ({names}) VALUES ({values})"


#: Of the sections that are updated: the column that names the row, and those that stay.
_NAMED = {
    "runs": ("id", "run_id", {"was", "reports"}),
    "steps": ("id", "id", {"run_id"}),
    "reports": ("uuid", "uuid", {"run_id", "lease"}),
}


@functools.cache
def _update(name: str, columns: tuple[str, ...]) -> str:
    place = {column: f"?{number}" for number, column in enumerate(columns, 1)}
    named, given, left = _NAMED[name]
    changed = [
        f"{c} = COALESCE({place[c]}, {c})"
        if (name, c) in KEPT_WHEN_NOT_GIVEN
        else f"{c} = {place[c]}"
        for c in columns
        if c != given and c not in left
    ]
    if name == "reports":
        changed += [f"activity = {place['updated']}", "taken_in = 1"]
    return f"UPDATE {_TABLES[name]} SET {', '.join(changed)} WHERE {named} = {place[given]}"


_JOIN = (
    "INSERT INTO flowengine_join (id, run_id, remaining, updated) "
    "VALUES (:id, :run_id, :remaining, :updated) "
    "ON CONFLICT (id) DO UPDATE SET remaining = remaining + excluded.remaining"
)
_LETTER = (
    "INSERT OR IGNORE INTO flowengine_fact (id, run_id, kind, payload, created, taken_in) "
    "VALUES (:id, :to_run, :kind, :payload, :created, 0)"
)
_PAYLOAD = (
    "INSERT OR IGNORE INTO flowengine_payload (hash, body, created) VALUES (:hash, :body, :created)"
)
