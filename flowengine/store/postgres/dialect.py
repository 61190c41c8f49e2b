"""The SQL of PostgreSQL. Each operation is one statement, which commits by itself."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowengine.store import claims
from flowengine.store.backend import EncodedReport, Executor
from flowengine.store.commit_rows import StoredLog
from flowengine.store.commits import CommitPlan
from flowengine.store.parts import MANY
from flowengine.store.postgres import commit as postgres_commit
from flowengine.store.postgres.executors import PipelineExecutor
from flowengine.store.postgres.section_sql import IS_HELD

IDS = "json_array_elements_text(%s::json) AS w(value)"
PAIRS = "json_to_recordset(%s::json) AS w(run_id text, key text)"
PAIR_RUN, PAIR_KEY = "w.run_id", "w.key"
TRIES = "json_to_recordset(%s::json) AS w(task_id text, lease bigint, line bigint)"
TRY_TASK, TRY_LEASE, TRY_LINE = "w.task_id", "w.lease", "w.line"
LOCK_ROWS = "json_to_recordset(%(rows)s::json) AS w(key text, meta text)"
LOCK_KEY, LOCK_META = "w.key", "w.meta"
JOIN = "JOIN"
LOCK, SKIP_LOCKED, SHARE_LOCK = " FOR UPDATE", " SKIP LOCKED", " FOR KEY SHARE"
ROW_ID, ROW_IDS, ROW_END = "ctid", "ctid = ANY(ARRAY", ")"
SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
# Conflicts with itself, too: two purges that both held it would wait for each other.
LOCK_REFERENCES = "LOCK TABLE flowengine_reference IN SHARE ROW EXCLUSIVE MODE NOWAIT"
REPORTED_INDEX = ""
# Constant within a statement, so a condition on it belongs to an index scan: tasks that are not due
# are passed over in the index. With `clock_timestamp` the row of each would be read.
CLOCK = "(extract(epoch FROM statement_timestamp()) * 1000)::bigint"

# --- claims ---

# Candidates are locked in a CTE, which is evaluated once. A subquery may be evaluated for every
# row, each time with a new limit.
#
# Other workers skip a locked task and go away, so a claim locks one task, and more only behind a
# quick one. The number of remaining tasks is counted without a lock.
_FIRST = f"""
    SELECT uuid, tenant, {claims.IS_QUICK} AS is_quick FROM flowengine_task
    WHERE {claims.IS_DUE} AND {{}} ORDER BY {claims.ORDER} LIMIT 1 FOR UPDATE SKIP LOCKED
"""
_DUE = f"""
WITH next AS MATERIALIZED ({_FIRST.replace("{}", "tenant > %(after)s")}
), again AS MATERIALIZED (
    {_FIRST.replace("{}", "tenant <= %(after)s AND NOT EXISTS (SELECT FROM next)")}
), first AS MATERIALIZED (
    SELECT * FROM next UNION ALL SELECT * FROM again
), behind AS MATERIALIZED (
    SELECT uuid, {claims.IS_QUICK} AS is_quick FROM flowengine_task
    WHERE {claims.IS_DUE} AND tenant = (SELECT tenant FROM first)
        AND (SELECT is_quick AND %(limit)s > 1 FROM first) AND uuid <> (SELECT uuid FROM first)
    ORDER BY {claims.ORDER} LIMIT %(limit)s - 1 FOR UPDATE SKIP LOCKED
), chosen AS (
    SELECT uuid FROM first UNION ALL SELECT uuid FROM behind WHERE is_quick
) """
_DUE_COUNT = (
    f"(SELECT count(*) FROM (SELECT FROM flowengine_task WHERE {claims.IS_DUE} "
    "LIMIT %(limit)s + 1) t)"
)
_SKIPPED_COUNT = "(SELECT count(*) FROM behind WHERE NOT is_quick)"
# LATERAL makes the planner look up the ids one by one until there are enough, and `|| ''` hides
# the state from it. Otherwise it scans all pending tasks.
_THESE = (
    "WITH chosen AS MATERIALIZED (SELECT found.uuid, found.tenant "
    "FROM json_array_elements_text(%(ids)s::json) AS w(uuid), LATERAL ("
    "SELECT t.uuid, t.tenant FROM flowengine_task t WHERE t.uuid = w.uuid "
    f"AND t.state || '' = 'pending' AND {claims.IS_CLAIMABLE} "
    "FOR UPDATE SKIP LOCKED) AS found LIMIT %(limit)s) "
)
_IN = "= ANY(%({})s::text[])"
CLAIM = claims.claim_text(_DUE, _IN, skipped=_SKIPPED_COUNT, count=_DUE_COUNT)
CLAIM_THESE = claims.claim_text(_THESE, _IN, count=f"({claims.OTHERS_WAIT})")
ANY_DUE_OF_LISTS = claims.any_due_text(f" AND task_list_name {_IN.format('lists')}")


def listed(values: Collection[str]) -> list[str]:
    return list(values)


# --- reports ---

_GIVE_BACK = (
    "UPDATE flowengine_task t SET state = {}, lease = t.lease + 1, updated = g.now{} "
    "FROM json_to_recordset(%s::json) AS g(uuid text, lease integer, due bigint, now bigint) "
    f"WHERE {IS_HELD} RETURNING t.task_list_name, t.uuid, t.state, t.queue, t.limits"
)
# `published` is empty: recovery sends the wake-up when the task is due.
_PARK = _GIVE_BACK.format(
    claims.PARKED,
    ", due = g.due, published = NULL, "
    "waited_circuit = COALESCE(t.waited_circuit, 0) + g.due - g.now, "
    "waited_backoff = COALESCE(t.waited_backoff, t.due - t.created)",
)
_RELEASE = _GIVE_BACK.format(claims.RELEASED, "")
PARK_WAITING = claims.park_waiting_text(MANY, " FOR UPDATE SKIP LOCKED")
_RECORD = f"""
WITH reports AS (
    SELECT * FROM json_to_recordset(%s::json)
    AS x(uuid text, lease integer, state text, outcome text, result text, error text, now bigint)
), done AS (
    UPDATE flowengine_task t
    SET state = g.state, outcome = g.outcome, result = g.result, error = g.error,
        updated = g.now, activity = g.now
    FROM reports g WHERE {IS_HELD}
    RETURNING t.uuid, t.join_id, t.run_id, g.now
), counted AS (
    UPDATE flowengine_join j SET remaining = j.remaining - c.number, updated = c.now
    FROM (SELECT join_id, count(*) AS number, max(now) AS now FROM done GROUP BY join_id) c
    WHERE j.id = c.join_id RETURNING j.id, j.remaining
), stored AS (
    INSERT INTO flowengine_payload (hash, body, created)
    SELECT p.hash, p.body, d.now
    FROM json_to_recordset(%s::json) AS p(uuid text, hash text, body text)
    JOIN done d ON d.uuid = p.uuid ORDER BY p.hash ON CONFLICT DO NOTHING
), referred AS (
    INSERT INTO flowengine_reference (run_id, hash)
    SELECT d.run_id, p.hash FROM json_to_recordset(%s::json) AS p(uuid text, hash text)
    JOIN done d ON d.uuid = p.uuid ORDER BY d.run_id, p.hash ON CONFLICT DO NOTHING
){{}} SELECT d.uuid, c.remaining FROM done d LEFT JOIN counted c ON c.id = d.join_id"""

_LOG_COLUMNS = ", ".join(StoredLog._fields)
_LOG_ROWS = (
    "json_to_recordset(%s::json) AS g(run_id text, task_id text, lease bigint, first_line bigint, "
    "line_count integer, created bigint, body text)"
)
# In the order of their keys: two statements that store the same chunks do not deadlock.
_ADD_LOGS = (
    f"INSERT INTO flowengine_log ({_LOG_COLUMNS}) SELECT {_LOG_COLUMNS} FROM {_LOG_ROWS}<held> "
    "ORDER BY task_id, lease, first_line ON CONFLICT DO NOTHING"
)
_HELD = " WHERE task_id IN (SELECT uuid FROM done)"
_RECORD_ALONE = _RECORD.format("")
_RECORD_WITH_LOGS = _RECORD.format(f", logged AS ({_ADD_LOGS.replace('<held>', _HELD)})")


def record(executor: Executor, reports: Sequence[EncodedReport], now: int) -> dict[str, int | None]:
    rows = [
        {"uuid": report.task_id, "lease": report.lease, "now": now, **report.ending._asdict()}
        for report in reports
    ]
    payloads = [
        {"uuid": report.task_id, "hash": digest, "body": body}
        for report in reports
        for digest, body in report.payloads.items()
    ]
    large = json.dumps(payloads)
    hashes = json.dumps([{"uuid": one["uuid"], "hash": one["hash"]} for one in payloads])
    values = [json.dumps(rows), large, hashes]
    logs = [row._asdict() for report in reports for row in report.logs]
    if not logs:
        return dict(executor.rows(_RECORD_ALONE, values))
    return dict(executor.rows(_RECORD_WITH_LOGS, [*values, json.dumps(logs)]))


def add_logs(executor: Executor, rows: Sequence[StoredLog]) -> None:
    text = _ADD_LOGS.replace("<held>", "") + " RETURNING 1"
    executor.rows(text, (json.dumps([row._asdict() for row in rows]),))


def release(
    executor: Executor, held: Sequence[tuple[str, int]], now: int, due: int | None = None
) -> list[tuple[Any, ...]]:
    rows = [{"uuid": uuid, "lease": lease, "due": due, "now": now} for uuid, lease in held]
    text = _RELEASE if due is None else _PARK
    return executor.rows(text, (json.dumps(rows),))


# --- locks ---

_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(%s, %s)"
_WAIT_FOR_LOCK = "SELECT pg_advisory_xact_lock(%s, %s)"
_LOCK_CLASS = zlib.crc32(b"flowengine") >> 1  # a signed integer


def try_lock(executor: Executor, name: str) -> bool:
    ((is_locked,),) = executor.rows(_TRY_LOCK, (_LOCK_CLASS, zlib.crc32(name.encode()) >> 1))
    return bool(is_locked)


def wait_for_lock(executor: Executor, name: str) -> None:
    executor.rows(_WAIT_FOR_LOCK, (_LOCK_CLASS, zlib.crc32(name.encode()) >> 1))


# A restart changes the first part. If one backend crashes, the server ends all sessions and starts
# again without a restart; that resets its statistics. A failover changes both.
INCARNATION = (
    "(SELECT concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), "
    "extract(epoch FROM stats_reset)) FROM pg_stat_bgwriter)"
)
# Shared: two processes that probe at the same time do not take each other for the holder.
_PROBE = f"SELECT {INCARNATION}, pg_try_advisory_xact_lock_shared(%s::bigint)"


def probe_lock(executor: Executor, key: int) -> tuple[str, bool]:
    ((incarnation, is_free),) = executor.rows(_PROBE, (key,))
    return incarnation, is_free


# --- commits ---

commit = postgres_commit.write
insert_calls = postgres_commit.insert_calls


@contextmanager
def stream_commits(executor: Executor) -> Iterator[Callable[[CommitPlan], object]]:
    if not isinstance(executor, PipelineExecutor):
        yield lambda plan: commit(executor, plan, guarded=False)
        return
    with executor.pipeline():
        yield lambda plan: postgres_commit.send(executor, plan)
