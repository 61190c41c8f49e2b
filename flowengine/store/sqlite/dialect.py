"""The SQL of SQLite. An operation of several statements is one transaction (`atomic`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowengine.store import claims
from flowengine.store.backend import EncodedReport, Executor, HeldActivation
from flowengine.store.commit_rows import SECTIONS, StoredLog
from flowengine.store.commits import CommitPlan, CommitRefused
from flowengine.store.parts import MANY
from flowengine.store.reports import COUNT_DOWN
from flowengine.store.sqlite.writes import CHECKS, INSERT_RUN, write_rows

IDS = PAIRS = "json_each(%s) w"
PAIR_RUN, PAIR_KEY = "json_extract(w.value, '$.run_id')", "json_extract(w.value, '$.key')"
TRIES = "json_each(%s) w"
TRY_TASK, TRY_LEASE, TRY_LINE = (
    f"json_extract(w.value, '$.{name}')" for name in ("task_id", "lease", "line")
)
LOCK_ROWS = "json_each(%(rows)s) w"
LOCK_KEY, LOCK_META = "json_extract(w.value, '$.key')", "json_extract(w.value, '$.meta')"
JOIN = "CROSS JOIN"  # keeps its order: each wanted row is looked up by the index
LOCK = SKIP_LOCKED = SHARE_LOCK = ""  # the transaction has the write lock
ROW_ID, ROW_IDS, ROW_END = "rowid", "rowid IN", ""
SNAPSHOT = ""  # every transaction reads one state
LOCK_REFERENCES = ""  # a transaction that writes is the only one
REPORTED_INDEX = "INDEXED BY flowengine_task_reported"
CLOCK = "%(now)s"  # SQLite has the clock of this process

# --- claims ---

_NEXT = f"""
    SELECT uuid, {claims.ORDER}, {claims.IS_QUICK} AS is_quick FROM flowengine_task
    WHERE {claims.IS_DUE} AND tenant {{}} %(after)s ORDER BY {claims.ORDER} LIMIT (%(limit)s + 1)"""
# A condition without columns would be tested for every row; after LIMIT 0 no row is read.
_DUE = f"""
WITH next AS MATERIALIZED ({_NEXT.replace("{}", ">")}
), candidates AS (
    SELECT * FROM next UNION ALL SELECT * FROM (
        {_NEXT.replace("{}", "<=")} * (NOT EXISTS (SELECT 1 FROM next)))
), numbered AS (
    SELECT uuid, tenant, is_quick, row_number() OVER (ORDER BY {claims.ORDER}) AS place
    FROM candidates
), first AS (
    SELECT tenant, is_quick FROM numbered WHERE place = 1
), chosen AS (
    SELECT uuid FROM numbered
    WHERE place = 1 OR (
        is_quick AND place <= %(limit)s AND (SELECT is_quick FROM first)
        AND tenant = (SELECT tenant FROM first)
    )
) """
_THESE = (
    "WITH chosen AS MATERIALIZED (SELECT t.uuid, t.tenant "
    "FROM json_each(%(ids)s) AS w CROSS JOIN flowengine_task AS t WHERE t.uuid = w.value "
    f"AND +t.state = 'pending' AND {claims.IS_CLAIMABLE} LIMIT %(limit)s) "
)
# RETURNING sees the updated rows: count the candidates, which were selected before, and add the
# tasks of tenants that were not looked at.
_DUE_COUNT = (
    "((SELECT count(*) FROM candidates) + ((SELECT tenant FROM first) > %(after)s AND EXISTS "
    f"(SELECT 1 FROM flowengine_task WHERE {claims.IS_DUE} AND tenant <= %(after)s)))"
)
_IN = "IN (SELECT value FROM json_each(%({})s))"
CLAIM = claims.claim_text(_DUE, _IN, count=_DUE_COUNT)
CLAIM_THESE = claims.claim_text(_THESE, _IN, count=f"({claims.OTHERS_WAIT})")
ANY_DUE_OF_LISTS = claims.any_due_text(f" AND task_list_name {_IN.format('lists')}")


def listed(values: Collection[str]) -> str:
    return json.dumps(list(values))


# --- reports ---

_IS_HELD = "uuid = %s AND lease = %s AND state = 'running'"
_GIVE_BACK = (
    "UPDATE flowengine_task SET state = {}, lease = lease + 1, updated = %s{} "
    f"WHERE {_IS_HELD} RETURNING task_list_name, uuid, state, queue, limits"
)
# `published` is empty: recovery sends the wake-up when the task is due.
_PARK = _GIVE_BACK.format(
    claims.PARKED,
    ", due = %s, published = NULL, waited_circuit = COALESCE(waited_circuit, 0) + %s, "
    "waited_backoff = COALESCE(waited_backoff, due - created)",
)
_RELEASE = _GIVE_BACK.format(claims.RELEASED, "")
PARK_WAITING = claims.park_waiting_text(MANY)
_RECORD = (
    "UPDATE flowengine_task SET state = %s, outcome = %s, result = %s, error = %s, "
    f"updated = %s, activity = %s WHERE {_IS_HELD} RETURNING join_id, run_id"
)
_REFERENCE = "INSERT OR IGNORE INTO flowengine_reference (run_id, hash) VALUES (?, ?)"
_PAYLOAD = "INSERT OR IGNORE INTO flowengine_payload (hash, body, created) VALUES (?, ?, ?)"

_ADD_LOG = (
    f"INSERT OR IGNORE INTO flowengine_log ({', '.join(StoredLog._fields)}) "
    f"VALUES ({', '.join('?' * len(StoredLog._fields))})"
)


def add_logs(executor: Executor, rows: Sequence[StoredLog]) -> None:
    with executor.atomic():
        executor.many(_ADD_LOG, rows)


def record(executor: Executor, reports: Sequence[EncodedReport], now: int) -> dict[str, int | None]:
    joins: dict[str, str | None] = {}
    with executor.atomic():
        for report in reports:
            values = (*report.ending, now, now, report.task_id, report.lease)
            for join_id, run_id in executor.rows(_RECORD, values):
                joins[report.task_id] = join_id
                if report.payloads:
                    executor.many(_PAYLOAD, [(*item, now) for item in report.payloads.items()])
                    executor.many(_REFERENCE, [(run_id, digest) for digest in report.payloads])
                if report.logs:
                    executor.many(_ADD_LOG, report.logs)
        counts = Counter(join_id for join_id in joins.values() if join_id)
        remaining: dict[str | None, int] = {
            join_id: executor.rows(COUNT_DOWN, (count, now, join_id))[0][0]
            for join_id, count in counts.items()
        }
    return {task_id: remaining.get(join_id) for task_id, join_id in joins.items()}


def release(
    executor: Executor, held: Sequence[tuple[str, int]], now: int, due: int | None = None
) -> list[tuple[Any, ...]]:
    text, times = (_RELEASE, (now,)) if due is None else (_PARK, (now, due, due - now))
    with executor.atomic():
        return [row for one in held for row in executor.rows(text, (*times, *one))]


# --- locks ---


def try_lock(executor: Executor, name: str) -> bool:
    return True  # a transaction that writes is the only one


def wait_for_lock(executor: Executor, name: str) -> None:
    """Do nothing: a transaction that writes is the only one."""


def probe_lock(executor: Executor, key: int) -> tuple[str, bool]:
    return "", False  # without sessions no lock of a session is known


# --- commits ---

# SQLite has one writer at a time and no round trips: a plan is written section by section, and
# the guard of an optimistic commit is a query before the part of a run is written.
_IS_CURRENT = "SELECT revision = %s FROM flowengine_run WHERE id = %s"
_COUNT_HELD = f"SELECT count(*) FROM flowengine_task WHERE {_IS_HELD}"


def commit(executor: Executor, plan: CommitPlan, *, guarded: bool) -> set[str]:
    with executor.atomic():
        if plan.agents is not None:
            return _commit_whole(executor, plan, guarded)
        allowed = _allowed(executor, plan, guarded)
        is_whole = len(allowed) == len(plan.runs) + len(plan.new_runs)
        _write_allowed(executor, plan, allowed, is_whole=is_whole)
    return allowed


def insert_calls(
    executor: Executor, plan: CommitPlan, held: Sequence[HeldActivation]
) -> Callable[[], set[str]]:
    with executor.atomic():
        allowed = {one.run_id for one in held if executor.rows(_COUNT_HELD, one[1:]) == [(1,)]}
        _write_allowed(executor, plan, allowed, is_whole=len(allowed) == len(held))
    return lambda: allowed


def _write_allowed(
    executor: Executor, plan: CommitPlan, allowed: set[str], *, is_whole: bool
) -> None:
    """Write the part of each allowed run, whose row is written if it is new."""
    for name, rows in plan.filled():
        if name == "new_runs":
            continue
        if not is_whole:
            place = SECTIONS[name].columns.index("run_id")
            rows = [row for row in rows if row[place] in allowed]
        if rows:
            write_rows(executor, name, rows)


def _allowed(executor: Executor, plan: CommitPlan, guarded: bool) -> set[str]:
    """Insert new runs, or check the guard; return the runs whose part may be written."""
    if plan.new_runs:
        text, parameters = INSERT_RUN
        assert parameters is not None
        return {run[0] for run in plan.new_runs if executor.rows(text, parameters(run))}
    if not guarded:
        return {run.run_id for run in plan.runs}
    return _current_runs(executor, plan)


def _current_runs(executor: Executor, plan: CommitPlan) -> set[str]:
    """Return the runs that are at their revision, and whose reported leases are held."""
    current = {
        run.run_id
        for run in plan.runs
        if executor.rows(_IS_CURRENT, (run.expected_revision, run.run_id)) == [(1,)]
    }
    for report in plan.reports:
        if executor.rows(_COUNT_HELD, (report.uuid, report.lease)) != [(1,)]:
            current.discard(report.run_id)
    return current


def _commit_whole(executor: Executor, plan: CommitPlan, guarded: bool) -> set[str]:
    """Write a plan with agents if no guard refuses a row of it; else nothing."""
    runs = _current_runs(executor, plan) if guarded else {run.run_id for run in plan.runs}
    filled, held = plan.filled(), None if plan.agents is None else plan.agents.held_task
    if len(runs) < len(plan.runs):
        raise CommitRefused
    if held is not None and executor.rows(_COUNT_HELD, held) != [(1,)]:
        raise CommitRefused
    for name, rows in filled:
        if name in CHECKS:
            text, parameters = CHECKS[name]
            assert parameters is not None
            if not all(executor.rows(text, parameters(row)) for row in rows):
                raise CommitRefused
    for name, rows in filled:
        write_rows(executor, name, rows)
    return plan.run_ids


@contextmanager
def stream_commits(executor: Executor) -> Iterator[Callable[[CommitPlan], object]]:
    yield lambda plan: commit(executor, plan, guarded=False)
