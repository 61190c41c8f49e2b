"""A commit written section by section, in a transaction that has the database for itself.

SQLite has one writer at a time and no round trips: here many short statements are quick, and
the guard is a look at the run before its part is written.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

from flowengine.store.commits import CommitRows, Rows
from flowengine.store.executing import Executor

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
    if found := of(rows.letters):
        run.many(_LETTER, found)
    if found := of(rows.payloads):
        run.many(_PAYLOAD, found)
    if found := of(rows.runs):
        run.many(_run_update(tuple(found[0])), found)
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
    # Rows of one section have the same columns.
    if found:
        run.many(build(name, tuple(found[0])), found)


@functools.cache
def _insert(name: str, columns: tuple[str, ...]) -> str:
    constants = _CONSTANTS.get(name, {})
    names = ", ".join(itertools.chain(columns, constants))
    values = ", ".join(itertools.chain((f":{c}" for c in columns), constants.values()))
    return f"INSERT INTO {_TABLES[name]} ({names}) VALUES ({values})"


@functools.cache
def _update(name: str, columns: tuple[str, ...]) -> str:
    if name == "reports":
        changed = _assigned(columns, {"run_id", "uuid", "lease"})
        more = "activity = :updated, taken_in = 1"
        return f"UPDATE flowengine_task SET {changed}, {more} WHERE uuid = :uuid"
    return f"UPDATE {_TABLES[name]} SET {_assigned(columns, {'run_id', 'id'})} WHERE id = :id"


@functools.cache
def _run_update(columns: tuple[str, ...]) -> str:
    changed = _assigned(columns, {"run_id", "was", "reports"})
    return f"UPDATE flowengine_run SET {changed} WHERE id = :run_id"


def _assigned(columns: Iterable[str], leave: set[str]) -> str:
    return ", ".join(f"{column} = :{column}" for column in columns if column not in leave)


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
