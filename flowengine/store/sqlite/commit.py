"""Write a commit plan section by section, in one write transaction.

SQLite has one writer at a time and no round trips: many short statements are fast, and the
guard of an optimistic commit is a query before the part of a run is written.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from flowengine.store.commit_rows import SECTIONS
from flowengine.store.commits import CommitPlan
from flowengine.store.executors import Executor
from flowengine.store.records import Row

_IS_CURRENT = "SELECT revision = ? FROM flowengine_run WHERE id = ?"
_IS_HELD = "SELECT count(*) FROM flowengine_task WHERE uuid = ? AND lease = ? AND state = 'running'"
#: Of the sections that are updated: the key of the table, the column of the section that names
#: it, and the columns that are not written.
_KEYS = {
    "runs": ("id", "run_id", {"expected_revision", "reports"}),
    "steps": ("id", "id", {"run_id"}),
    "reports": ("uuid", "uuid", {"run_id", "lease"}),
}
_STATEMENTS = {
    "joins": "INSERT INTO flowengine_join (run_id, id, remaining, updated) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET remaining = remaining + excluded.remaining",
    "consumed_tasks": "UPDATE flowengine_task SET taken_in = 1 WHERE uuid = ?2",
    "consumed_facts": "UPDATE flowengine_fact SET taken_in = 1 WHERE id = ?2",
    "parent_facts": "INSERT OR IGNORE INTO flowengine_fact "
    "(id, run_id, kind, payload, created, taken_in) VALUES (?3, ?2, ?4, ?5, ?6, 0)",
    "payloads": "INSERT OR IGNORE INTO flowengine_payload (hash, body, created) "
    "VALUES (?2, ?3, ?4)",
}


def write(executor: Executor, plan: CommitPlan, *, guarded: bool) -> set[str]:
    """Write a commit; return the runs whose part was written."""
    if plan.new_runs:
        insert = _insert("new_runs", " OR IGNORE") + " RETURNING id"
        allowed = {run[0] for run in plan.new_runs if executor.rows(insert, run)}
    elif guarded:
        allowed = _allowed(executor, plan)
    else:
        allowed = {run.run_id for run in plan.runs}
    is_whole = not guarded and len(allowed) == len(plan.runs) + len(plan.new_runs)
    for name, rows in plan.filled():
        if name == "new_runs":
            continue
        if not is_whole:
            place = SECTIONS[name].columns.index("run_id")
            rows = [row for row in rows if row[place] in allowed]
        if rows:
            _write(executor, name, rows)
    return allowed


def _allowed(executor: Executor, plan: CommitPlan) -> set[str]:
    current = {
        run.run_id
        for run in plan.runs
        if executor.rows(_IS_CURRENT, (run.expected_revision, run.run_id)) == [(1,)]
    }
    for report in plan.reports:
        if executor.rows(_IS_HELD, (report.uuid, report.lease)) != [(1,)]:
            current.discard(report.run_id)
    return current


def _write(executor: Executor, name: str, rows: Sequence[Row]) -> None:
    # Bound by position: to look up parameter names takes the driver longer than to bind them.
    if name in _KEYS:
        text = _update(name)
    else:
        text = _STATEMENTS.get(name) or _insert(name)
    executor.many(text, rows)


@functools.cache
def _insert(name: str, how: str = "") -> str:
    section = SECTIONS[name]
    names = ", ".join((*section.columns, *section.constants))
    values = ", ".join((*(["?"] * len(section.columns)), *section.constants.values()))
    return f"INSERT{how} INTO {section.table.name} ({names}) VALUES ({values})"


@functools.cache
def _update(name: str) -> str:
    section = SECTIONS[name]
    place = {column: f"?{number}" for number, column in enumerate(section.columns, 1)}
    key, source, unwritten = _KEYS[name]
    changed = [
        f"{c} = COALESCE({place[c]}, {c})" if c in section.optional else f"{c} = {place[c]}"
        for c in section.columns
        if c != source and c not in unwritten
    ]
    if name == "reports":
        changed += [f"activity = {place['updated']}", "taken_in = 1"]
    return f"UPDATE {section.table.name} SET {', '.join(changed)} WHERE {key} = {place[source]}"
