"""Write a commit plan as one PostgreSQL statement.

A round trip costs more than the rows it carries, so every section of a plan is a CTE of one
statement (encoded by `row_encoder`), which commits by itself.

An optimistic commit (`guarded`) locks and reads nothing beforehand: the part of a run is written
only if the run is still at the revision that was evaluated and every reported task is still held
under its lease. Otherwise nothing of the run is written, and the result leaves it out. A run whose
row is locked counts as changed: the statement never waits for one lock while it holds another, so
it cannot deadlock.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping

from flowengine.store.backend import Executor
from flowengine.store.commit_rows import SECTIONS
from flowengine.store.commits import CommitPlan
from flowengine.store.postgres.executors import PipelineExecutor, PostgresExecutor
from flowengine.store.postgres.row_encoder import Encoding, decode, encode

CHANNEL = "flowengine_run"  #: of NOTIFY: the runs that ended
FEED = "_feed"  #: behind the channel of ended runs: commits that the feed is to have
TASK_CHANNEL = "flowengine_task"  #: of NOTIFY: task lists that have due tasks, for pollers
#: The row `g` names the task `t`, which is still held. One condition about both: given the state
#: by itself, the planner may scan all running tasks.
IS_HELD = "t.uuid = g.uuid AND CASE t.lease WHEN g.lease THEN t.state = 'running' END"

_DIVISION_BY_ZERO = "22012"
_SAME_RUN = "t.id = g.run_id"
_IGNORE = " ON CONFLICT DO NOTHING"
_CONSUMED = ", activity = g.updated, taken_in = true"
#: Columns of a section that name its row or guard it, and are not written.
_KEYS = {
    "runs": {"run_id", "expected_revision", "reports"},
    "reports": {"run_id", "uuid", "lease"},
    "steps": {"run_id", "id"},
    "ended_timers": {"run_id", "id"},
}


def task_channel(channel: str) -> str:
    """Return the channel of due tasks, given that of ended runs: both end with the schema."""
    return TASK_CHANNEL + channel.removeprefix(CHANNEL)


def write(executor: Executor, plan: CommitPlan, *, guarded: bool) -> set[str]:
    """Write a commit; return the runs whose part was written."""
    text, values = _statement_of(plan, guarded, executor.channel)
    try:
        if isinstance(executor, PostgresExecutor):
            return set(executor.fetch_text_column(text, values))
        return {row[0] for row in executor.rows(text, values)}
    except Exception as problem:
        if guarded and getattr(problem, "sqlstate", "") == _DIVISION_BY_ZERO:
            return set()
        raise


def send(executor: PipelineExecutor, plan: CommitPlan) -> None:
    """Write a commit of a locked run, without waiting for the result."""
    executor.send(*_statement_of(plan, False, executor.channel))


def _statement_of(plan: CommitPlan, guarded: bool, channel: str) -> tuple[str, list[str | None]]:
    is_alone = len(plan.runs) + len(plan.new_runs) <= 1
    encodings, values = encode(plan, is_alone=is_alone)
    if plan.notes:
        values.append(json.dumps(plan.notes))
    return _statement(encodings, guarded, is_alone, channel, bool(plan.notes)), values


@functools.cache
def _statement(
    encodings: tuple[Encoding, ...], guarded: bool, is_alone: bool, channel: str, has_notes: bool
) -> str:
    """Build the statement for these sections, of one run or of several.

    There are few kinds of commits, so few statements.
    """
    names = [encoding.section for encoding in encodings]
    parts = [decode(encoding) for encoding in encodings]
    is_checked = guarded and is_alone
    parts += _allowed_alone(names) if is_checked else _allowed(names, guarded)
    parts += [
        f"{name}_w AS ({_write(name, _allowed_rows(name, is_alone))})"
        for name in names
        if not (is_checked and name in ("runs", "reports"))
    ]
    more = f", pg_notify('{channel}{FEED}', '')" if "unnumbered" in names else ""
    if has_notes:
        # Evaluated once, and only if a row is returned: a refused commit notifies nobody.
        sent = f"pg_notify('{task_channel(channel)}', n.value)"
        more += f", (SELECT count({sent}) FROM json_array_elements_text(%s::json) n)"
    if "runs" not in names:
        source = "new_runs_w" if "new_runs" in names else "ok"
        return f"WITH {', '.join(parts)} SELECT g.id, NULL{more} FROM {source} g"
    source = _allowed_rows("runs", is_alone)
    if is_checked and "reports" in names:
        source += " JOIN checked ON checked.held = 1"
    notify = f"CASE WHEN g.finished IS NOT NULL THEN pg_notify('{channel}', g.run_id) END"
    return f"WITH {', '.join(parts)} SELECT g.run_id, {notify}{more} FROM {source}"


def _allowed(names: list[str], guarded: bool) -> list[str]:
    """Return the CTEs that end with `ok`, the runs whose part may be written."""
    if "new_runs" in names:
        insert = _insert("new_runs", "new_runs_") + _IGNORE
        return [f"ok AS ({insert} RETURNING flowengine_run.id)"]
    if not guarded:
        of_runs = [name for name in ("runs", "consumed_tasks", "consumed_facts") if name in names]
        ids = " UNION ".join(f"SELECT run_id AS id FROM {name}_" for name in of_runs)
        return [f"ok AS ({ids})"]
    locked = (
        "locked AS (SELECT t.id, g.reports FROM flowengine_run t JOIN runs_ g ON t.id = g.run_id "
        "WHERE t.revision = g.expected_revision ORDER BY t.id FOR UPDATE OF t SKIP LOCKED)"
    )
    if "reports" not in names:
        return [locked, "ok AS (SELECT id FROM locked)"]
    of_locked = _rows_of("reports", "locked")
    held = (
        f"held AS (SELECT t.run_id FROM flowengine_task t JOIN {of_locked} ON {IS_HELD} "
        "FOR UPDATE OF t)"
    )
    ok = (
        "ok AS (SELECT l.id FROM locked l WHERE ((l.id, l.reports::bigint) IN "
        "(SELECT run_id, count(*) FROM held GROUP BY run_id)) IS TRUE)"
    )
    return [locked, held, ok]


def _allowed_alone(names: list[str]) -> list[str]:
    """Return the same for one run: the updates of the run and of its tasks are the guard.

    No row is looked up twice. A lost lease is an error here, which undoes the whole statement.
    """
    run = _update("runs", _SAME_RUN, "runs_ g")
    parts = [f"ok AS ({run} AND t.revision = g.expected_revision RETURNING t.id)"]
    if "reports" not in names:
        return parts
    done = _update("reports", IS_HELD, _allowed_rows("reports", is_alone=True), _CONSUMED)
    return [
        *parts,
        f"done AS ({done} RETURNING 1)",
        # Abort the statement (division by zero) if any reported lease was lost.
        "checked AS (SELECT 1 / (CASE WHEN (SELECT count(*) FROM done) = g.reports "
        "OR NOT EXISTS (SELECT 1 FROM ok) THEN 1 ELSE 0 END) AS held FROM runs_ g)",
    ]


def _allowed_rows(name: str, is_alone: bool) -> str:
    return f"{name}_ g JOIN ok ON ok.id = g.run_id" if is_alone else _rows_of(name, "ok")


def _rows_of(name: str, runs: str) -> str:
    # Looked up in a hash. As a join it would be a nested loop, for the other joins are off.
    # `IS TRUE` keeps the planner from turning it into a join.
    return f"(SELECT * FROM {name}_ x WHERE (x.run_id IN (SELECT id FROM {runs})) IS TRUE) g"


def _write(name: str, source: str) -> str:
    match name:
        case "new_runs":
            return "SELECT id FROM ok"
        case "runs":
            return _update(name, _SAME_RUN, source)
        case "reports":
            return _update(name, "t.uuid = g.uuid", source, _CONSUMED)
        case "steps" | "ended_timers":
            return _update(name, "t.id = g.id", source)
        case "superseded_steps":
            update = "UPDATE flowengine_step t SET superseded = true"
            return f"{update} FROM {source} WHERE t.id = g.id"
        case "consumed_tasks":
            update = "UPDATE flowengine_task t SET taken_in = true"
            return f"{update} FROM {source} WHERE t.uuid = g.uuid"
        case "consumed_facts":
            update = "UPDATE flowengine_fact t SET taken_in = true"
            return f"{update} FROM {source} WHERE t.id = g.id"
        case "payloads" | "agent_reports":
            return _insert(name, source, skipped="run_id") + _IGNORE
        case "labels":
            return _insert(name, source) + _IGNORE
        case "references":
            return _insert(name, source, {"to_run": "run_id"}, skipped="run_id") + _IGNORE
        case "parent_facts":
            return _insert(name, source, {"to_run": "run_id"}, skipped="run_id") + _IGNORE
        case "joins":
            more = "flowengine_join.remaining + excluded.remaining"
            insert = _insert(name, source)
            return f"{insert} ON CONFLICT (id) DO UPDATE SET remaining = {more}"
        case _:
            # Without ON CONFLICT, which costs as much as the insertion: under the run's lock, or
            # its guard, no other process inserts the same rows.
            return _insert(name, source)


def _update(name: str, where: str, source: str, more: str = "") -> str:
    section = SECTIONS[name]
    changed = ", ".join(
        f'"{c}" = COALESCE(g."{c}", t."{c}")' if c in section.optional else f'"{c}" = g."{c}"'
        for c in section.columns
        if c not in _KEYS[name]
    )
    return f"UPDATE {section.table.name} t SET {changed}{more} FROM {source} WHERE {where}"


def _insert(
    name: str, source: str, renamed: Mapping[str, str] | None = None, skipped: str = ""
) -> str:
    section = SECTIONS[name]
    columns = [column for column in section.columns if column != skipped]
    into = [(renamed or {}).get(column, column) for column in columns]
    names = ", ".join(f'"{column}"' for column in (*into, *section.constants))
    prefix = "" if name == "new_runs" else "g."
    values = [*(f'{prefix}"{column}"' for column in columns), *section.constants.values()]
    return f"INSERT INTO {section.table.name} ({names}) SELECT {', '.join(values)} FROM {source}"
