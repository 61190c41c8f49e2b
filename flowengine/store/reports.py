"""Reports: how tries ended, recorded once.

Every statement here says from which state and under which lease it may act, so whoever
comes late, twice or back from the dead changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, select, update

from flowengine.evaluator import Step, TaskDefinition, TaskState
from flowengine.evaluator.states import tasks_that_may_become
from flowengine.evaluator.triggers import (
    Failed,
    Lost,
    Outcome,
    Report,
    Succeeded,
)
from flowengine.store import codec, joins
from flowengine.store.commits import ending_of
from flowengine.store.executors import Executor
from flowengine.store.records import STEP_COLUMNS, limit_key, step_from
from flowengine.store.rows import MANY
from flowengine.store.tables import TASK_IS_REPORTED, TASK_IS_RUNNING
from flowengine.store.tasks import IS_HELD, table

# --- what the holder of a lease may do ---

_HELD = and_(
    table.c.uuid == bindparam("task"),
    table.c.lease == bindparam("held"),
    TASK_IS_RUNNING,
)
_RELEASE = (
    "UPDATE flowengine_task t SET state = 'pending', lease = t.lease + 1, updated = g.now "
    "FROM json_to_recordset(%s::json) AS g(uuid text, lease integer, now bigint) "
    f"WHERE {IS_HELD} "
    "RETURNING t.task_list_name",
    "UPDATE flowengine_task SET state = 'pending', lease = lease + 1, updated = :now "
    "WHERE uuid = :uuid AND lease = :lease AND state = 'running' RETURNING task_list_name",
)
# Nobody has rung for when it is due again: `published` is empty, so the watchdog will.
_PARK = (
    "UPDATE flowengine_task t SET state = 'pending', lease = t.lease + 1, due = g.due, "
    "published = NULL, updated = g.now "
    "FROM json_to_recordset(%s::json) AS g(uuid text, lease integer, due bigint, now bigint) "
    f"WHERE {IS_HELD} RETURNING t.uuid",
    "UPDATE flowengine_task SET state = 'pending', lease = lease + 1, due = :due, "
    "published = NULL, updated = :now "
    "WHERE uuid = :uuid AND lease = :lease AND state = 'running' RETURNING uuid",
)
_WAITING = f"""
    SELECT uuid FROM flowengine_task
    WHERE state = 'pending' AND task_list_name = {{task_list}} AND due <= {{now}}
        AND limit_key = {{key}}
    ORDER BY rank, due, position LIMIT {MANY} {{lock}}"""
_PARK_WAITING = tuple(
    f"WITH waiting AS ({_WAITING}) UPDATE flowengine_task SET lease = lease + 1, due = {{due}}, "
    "published = NULL, updated = {now} "
    "WHERE uuid IN (SELECT uuid FROM waiting) AND state = 'pending' RETURNING uuid".format(
        **{name: mark.format(name) for name in ("task_list", "now", "key", "due")}, lock=lock
    )
    for mark, lock in (("%({})s", "FOR UPDATE SKIP LOCKED"), (":{}", ""))
)
_BEAT = update(table).where(_HELD).values(activity=bindparam("now"))


#: Of each report that was accepted its task, its join, and how many of the join are left.
_RECORD = f"""
WITH given AS (
    SELECT * FROM json_to_recordset(%s::json)
    AS x(uuid text, lease integer, state text, outcome text, result text, error text, now bigint)
), done AS (
    UPDATE flowengine_task t
    SET state = g.state, outcome = g.outcome, result = g.result, error = g.error,
        updated = g.now, activity = g.now
    FROM given g WHERE {IS_HELD}
    RETURNING t.uuid, t.join_id, g.now
), counted AS (
    UPDATE flowengine_join j SET remaining = j.remaining - c.number, updated = c.now
    FROM (SELECT join_id, count(*) AS number, max(now) AS now FROM done GROUP BY join_id) c
    WHERE j.id = c.join_id RETURNING j.id, j.remaining
), kept AS (
    INSERT INTO flowengine_payload (hash, body, created)
    SELECT p.hash, p.body, d.now
    FROM json_to_recordset(%s::json) AS p(uuid text, hash text, body text)
    JOIN done d ON d.uuid = p.uuid ORDER BY p.hash ON CONFLICT DO NOTHING
) SELECT d.uuid, d.join_id, c.remaining FROM done d LEFT JOIN counted c ON c.id = d.join_id"""
_RECORD_ONE = (
    "UPDATE flowengine_task SET state = :state, outcome = :outcome, result = :result, "
    "error = :error, updated = :now, activity = :now "
    "WHERE uuid = :uuid AND lease = :lease AND state = 'running' RETURNING uuid, join_id"
)
_KEEP = "INSERT OR IGNORE INTO flowengine_payload (hash, body, created) VALUES (:hash, :body, :now)"
_COUNT_DOWN = (
    "UPDATE flowengine_join SET remaining = remaining - ?, updated = ? WHERE id = ? "
    "RETURNING remaining"
)


def record(executor: Executor, reports: Sequence[Report], now: int) -> dict[str, int | None]:
    """Record the reports whose lease is still held; others change nothing (fencing).

    Returns for each recorded task how many tasks of its join are still unreported; None if it has
    no join. All tasks of one call belong to one join, or to none: updating several join counters
    in one transaction can deadlock.
    """
    rows: list[dict[str, Any]] = []
    large: list[dict[str, str]] = []
    for report in reports:
        encoder, task = codec.Encoder(), report.task
        ending = ending_of(report.outcome, encoder)
        rows.append({"uuid": task.uuid, "lease": task.lease, "now": now, **ending._asdict()})
        large += [
            {"uuid": task.uuid, "hash": digest, "body": body}
            for digest, body in encoder.payloads.items()
        ]
    if not executor.is_sqlite:
        found = executor.rows(_RECORD, (json.dumps(rows), json.dumps(large)))
        return {task_id: left if join_id else None for task_id, join_id, left in found}
    accepted = dict(found for row in rows for found in executor.rows(_RECORD_ONE, row))
    kept = [{**payload, "now": now} for payload in large if payload["uuid"] in accepted]
    if kept:
        executor.many(_KEEP, kept)
    counts = Counter(join_id for join_id in accepted.values() if join_id)
    left = {
        join_id: executor.rows(_COUNT_DOWN, (count, now, join_id))[0][0]
        for join_id, count in counts.items()
    }
    return {task_id: left.get(join_id) for task_id, join_id in accepted.items()}


def release(executor: Executor, held: Sequence[tuple[str, int]], now: int) -> list[str]:
    """Hand tasks back unfinished; they may be claimed again at once. Returns their lists."""
    rows = [{"uuid": task_id, "lease": lease, "now": now} for task_id, lease in held]
    if not executor.is_sqlite:
        return [row[0] for row in executor.rows(_RELEASE[0], (json.dumps(rows),))]
    return [found[0] for row in rows for found in executor.rows(_RELEASE[1], row)]


def park(executor: Executor, held: Sequence[tuple[str, int]], due: int, now: int) -> int:
    """Hand tasks back that their circuit does not let through; they are due again then.

    That they were held is all that this leaves behind: it is neither a try nor a loss.
    """
    rows = [{"uuid": task_id, "lease": lease, "due": due, "now": now} for task_id, lease in held]
    if not executor.is_sqlite:
        return len(executor.rows(_PARK[0], (json.dumps(rows),)))
    return sum(len(executor.rows(_PARK[1], row)) for row in rows)


def park_waiting(executor: Executor, task_list: str, circuit: str, due: int, now: int) -> int:
    """Do the same to what waits in a list for the same circuit, some hundreds at once.

    Each would be claimed only to be handed back.
    """
    values = {"task_list": task_list, "key": limit_key(circuit), "due": due, "now": now}
    return len(executor.rows(_PARK_WAITING[executor.is_sqlite], values))


def beat(connection: Connection, task_id: str, lease: int, now: int) -> bool:
    """Note a sign of life; False tells the holder that it has lost the task."""
    return bool(connection.execute(_BEAT, {"task": task_id, "held": lease, "now": now}).rowcount)


# --- what the evaluator takes in ---

_REPORT = ("uuid", "try_number", "losses", "outcome", "result", "error", "position")
_REPORTED = (
    f"SELECT {', '.join(f't.{name}' for name in _REPORT)}, "
    f"{', '.join(f's.{name}' for name in STEP_COLUMNS)} "
    "FROM flowengine_task t {index} JOIN flowengine_step s ON s.id = t.step_id "
    "WHERE t.run_id = {p} AND t.state IN ('completed', 'failed') AND NOT t.taken_in "
    # Unordered: to find the first of thousands in order, all would be read and sorted each time.
    "LIMIT {p}"
)
_CANCEL = (
    update(table)
    .where(
        and_(
            table.c.run_id == bindparam("run"),
            table.c.step_id.in_(bindparam("ids", expanding=True)),
            table.c.state.in_(tasks_that_may_become(TaskState.CANCELED)),
        )
    )
    .values(
        state=TaskState.CANCELED,
        lease=table.c.lease + 1,
        taken_in=True,
        updated=bindparam("now"),
    )
    .returning(table.c.join_id)
)


_POSTGRES = {"p": "%s", "index": ""}
_SQLITE = {"p": "?", "index": "INDEXED BY flowengine_task_reported"}


def unevaluated(executor: Executor, run_id: str, limit: int) -> list[tuple[Report, Step]]:
    """Return recorded reports that the evaluator has not consumed, each with its step."""
    text = _REPORTED.format(**(_SQLITE if executor.is_sqlite else _POSTGRES))
    found = []
    for row in sorted(executor.rows(text, (run_id, limit)), key=lambda row: row[6]):
        task_id, try_number, losses, outcome, result, error = row[:6]
        step = step_from(row[len(_REPORT) :])
        task = TaskDefinition(
            task_id,
            step.facet_name,
            "",
            run_id,
            "",
            step.id,
            step_key=step.key,
            step_path=step.path,
            try_number=try_number,
            losses=losses,
        )
        found.append((Report(task, _outcome(outcome, result, error)), step))
    return found


def _outcome(outcome: str, result: str | None, error: str | None) -> Outcome:
    if outcome == "succeeded":
        return Succeeded(codec.attributes(result))
    told = codec.load(error)
    if outcome == "lost":
        return Lost(told["message"])
    return Failed(told, retry=outcome == "failed")


def cancel_open(connection: Connection, run_id: str, step_ids: Sequence[str], now: int) -> bool:
    """Stop and fence what is still open for these steps of a run.

    True: a join was counted down to nothing, so that nobody else evaluates what it counted.
    """
    if not step_ids:
        return False
    stopped = connection.execute(
        _CANCEL, {"run": run_id, "ids": list(step_ids), "now": now}
    ).scalars()
    counts = sorted(Counter(join_id for join_id in stopped if join_id).items())
    left = [joins.count_down(connection, join_id, now, count) for join_id, count in counts]
    return any(number <= 0 for number in left)


_REPORTED_COUNTS = (
    select(table.c.run_id, func.count())
    .where(and_(table.c.run_id.in_(bindparam("runs", expanding=True)), TASK_IS_REPORTED))
    .where(table.c.state == TaskState.COMPLETED)
    .group_by(table.c.run_id)
)


def reported_counts(connection: Connection, run_ids: Sequence[str]) -> dict[str, int]:
    """Return of each run how many results are recorded and not taken in yet."""
    if not run_ids:
        return {}
    found = connection.execute(_REPORTED_COUNTS, {"runs": list(run_ids)})
    return {row[0]: row[1] for row in found}
