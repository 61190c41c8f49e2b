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
from collections.abc import Callable, Sequence

from flowengine.store.backend import Executor, HeldActivation
from flowengine.store.closed_workflows import IS_ADMITTED
from flowengine.store.commits import CommitPlan, CommitRefused
from flowengine.store.postgres.channels import FEED, task_channel
from flowengine.store.postgres.executors import PipelineExecutor, PostgresExecutor
from flowengine.store.postgres.row_encoder import Encoding, decode, encode
from flowengine.store.postgres.section_sql import (
    CONSUMED,
    IGNORE,
    IS_HELD,
    SAME_RUN,
    insert,
    update,
    write_rows,
)
from flowengine.store.postgres.whole_commit import whole_statement

_DIVISION_BY_ZERO = "22012"
#: With agents: another process has made the same decision, and inserted its rows.
_REFUSED_ROWS = (_DIVISION_BY_ZERO, "23505")


def write(executor: Executor, plan: CommitPlan, *, guarded: bool) -> set[str]:
    """Write a commit; return the runs whose part was written. Raises CommitRefused."""
    text, values = _statement_of(plan, guarded, executor.channel)
    try:
        if isinstance(executor, PostgresExecutor):
            written = set(executor.fetch_text_column(text, values))
        else:
            written = {row[0] for row in executor.rows(text, values)}
    except Exception as problem:
        state = getattr(getattr(problem, "orig", problem), "sqlstate", "")
        if plan.agents is not None and state in _REFUSED_ROWS:
            raise CommitRefused from problem
        if guarded and state == _DIVISION_BY_ZERO:
            return set()
        raise
    return written if plan.agents is None else plan.run_ids


def insert_calls(
    executor: Executor, plan: CommitPlan, held: Sequence[HeldActivation]
) -> Callable[[], set[str]]:
    """Insert the calls of the activations whose task is held under its lease.

    The server may still be at it when this returns; the result is waited for by the next statement
    on the connection.
    """
    is_alone = len(held) == 1
    encodings, values = encode(plan, is_alone=is_alone)
    text = _calls_statement(encodings, is_alone)
    if is_alone:
        given = [*values, held[0].task_id, str(held[0].lease)]
    else:
        given = [*values, json.dumps({one.task_id: one.lease for one in held})]
    if not isinstance(executor, PostgresExecutor):
        written = {row[0] for row in executor.rows(text, given)}
    elif (sent := executor.send_text(text, given)) is not None:
        return lambda: set(sent.column())
    else:
        written = set(executor.fetch_text_column(text, given))
    return lambda: written


@functools.cache
def _calls_statement(encodings: tuple[Encoding, ...], is_alone: bool) -> str:
    names = [encoding.section for encoding in encodings]
    parts = [decode(encoding) for encoding in encodings]
    # FOR SHARE: whoever takes a lease away waits for this statement, or it sees the new lease. In
    # the order of the tasks: two statements lock none of them crosswise.
    parts.append(_HELD_ALONE if is_alone else _HELD_TOGETHER)
    rows_of = functools.partial(_allowed_rows, is_alone=is_alone)
    parts += [f"{name}_w AS ({write_rows(name, rows_of(name))})" for name in names]
    return f"WITH {', '.join(parts)} SELECT id FROM ok"


_HELD_ALONE = (
    "ok AS (SELECT t.run_id AS id FROM flowengine_task t WHERE t.uuid = %s::text "
    "AND t.lease = %s::integer AND t.state = 'running' FOR SHARE)"
)
_HELD_TOGETHER = (
    "g AS MATERIALIZED (SELECT key AS uuid, value::integer AS lease FROM json_each_text(%s)), "
    "ok AS MATERIALIZED (SELECT t.run_id AS id FROM flowengine_task t JOIN g "
    f"ON {IS_HELD} ORDER BY t.uuid FOR SHARE OF t)"
)


def send(executor: PipelineExecutor, plan: CommitPlan) -> None:
    """Write a commit of a locked run, without waiting for the result."""
    executor.send(*_statement_of(plan, False, executor.channel))


def _statement_of(plan: CommitPlan, guarded: bool, channel: str) -> tuple[str, list[str | None]]:
    is_alone = len(plan.runs) + len(plan.new_runs) <= 1
    encodings, values = encode(plan, is_alone=is_alone or plan.agents is not None)
    agents = plan.agents
    profile = None if agents is None else agents.held_profile
    task = None if agents is None else agents.held_task
    if profile is not None:
        values += profile
    if task is not None:
        values += (task[0], str(task[1]))
    if plan.notes:
        values.append(json.dumps(plan.notes))
    if agents is not None:
        is_one = len(plan.runs) <= 1 and len(agents.heads) <= 1
        about = (channel, bool(plan.notes), profile is not None, task is not None)
        return whole_statement(encodings, is_one, *about), values
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
        f"{name}_w AS ({write_rows(name, _allowed_rows(name, is_alone))})"
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
        is_admitted = IS_ADMITTED.format(
            parent="parent_run_id", call="agent_call", workflow="new_runs_.workflow"
        )
        new = insert("new_runs", f"new_runs_ WHERE {is_admitted}") + IGNORE
        return [f"ok AS ({new} RETURNING flowengine_run.id)"]
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
    run = update("runs", SAME_RUN, "runs_ g")
    parts = [f"ok AS ({run} AND t.revision = g.expected_revision RETURNING t.id)"]
    if "reports" not in names:
        return parts
    done = update("reports", IS_HELD, _allowed_rows("reports", is_alone=True), CONSUMED)
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
