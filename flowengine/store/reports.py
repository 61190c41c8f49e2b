"""Reports: how tries ended, recorded once.

Every write names the state and the lease it requires (fencing), so a late or repeated report
changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from flowengine.evaluator import TaskState
from flowengine.evaluator.states import tasks_that_may_become
from flowengine.evaluator.triggers import Report
from flowengine.store import codec
from flowengine.store.backend import EncodedReport, in_dialect
from flowengine.store.commits import stored_log
from flowengine.store.endings import ending_of
from flowengine.store.parts import Part, quoted, statement
from flowengine.store.records import limit_key
from flowengine.store.tables import TASK_IS_REPORTED, TASK_IS_RUNNING

_BEAT = (
    "UPDATE flowengine_task SET activity = :now{} "
    f"WHERE uuid = :task AND lease = :lease AND {TASK_IS_RUNNING}"
)
_HEARTBEAT = statement(_BEAT.format(""))
_PROGRESS = statement(_BEAT.format(", progress = :progress"))
_CANCEL = statement(
    f"UPDATE flowengine_task SET state = '{TaskState.CANCELED}', lease = lease + 1, "
    "taken_in = true, updated = :now WHERE run_id = :run AND step_id IN :ids "
    f"AND state IN ({quoted(tasks_that_may_become(TaskState.CANCELED))}) RETURNING join_id, limits",
    "ids",
)
_HOLD = statement(
    "UPDATE flowengine_task SET is_held = true, updated = :now, "
    f"state = CASE state WHEN '{TaskState.RUNNING}' THEN state ELSE '{TaskState.HELD}' END "
    f"WHERE run_id = :run AND state IN ({quoted(TaskState.OPEN - {TaskState.HELD})}) "
    "RETURNING limits"
)
_END_HOLD = statement(
    "UPDATE flowengine_task SET is_held = false, updated = :now, "
    f"waited_hold = CASE WHEN state = '{TaskState.HELD}' "
    "THEN COALESCE(waited_hold, 0) + :now - updated ELSE waited_hold END, "
    f"state = CASE WHEN state <> '{TaskState.HELD}' THEN state "
    f"WHEN queue IS NULL THEN '{TaskState.PENDING}' ELSE '{TaskState.WAITING}' END "
    f"WHERE run_id = :run "
    f"AND (state = '{TaskState.HELD}' OR is_held AND state = '{TaskState.RUNNING}') "
    "RETURNING uuid, task_list_name, state, due, queue, limits"
)
COUNT_DOWN = (
    "UPDATE flowengine_join SET remaining = remaining - %s, updated = %s WHERE id = %s "
    "RETURNING remaining"
)
_RECORDED_COUNTS = (
    "SELECT w.value, (SELECT count(*) FROM (SELECT 1 FROM flowengine_task WHERE run_id = w.value "
    f"AND {TASK_IS_REPORTED} AND state = '{TaskState.COMPLETED}' LIMIT %s) AS c) "
    "FROM {IDS}"
)


class ReleasedTask(NamedTuple):
    """A task that its worker has given back."""

    task_list: str
    uuid: str
    state: str
    queue: str | None
    limits: str | None


class Reports(Part):
    """Records reports, releases and heartbeats of tasks."""

    def record(self, reports: Sequence[Report], now: int) -> dict[str, int | None]:
        """Record the reports whose lease is still held; others change nothing (fencing).

        Returns for each recorded task how many tasks of its join are still unreported; None if it
        has no join. All tasks of one call belong to one join, or to none: updating several join
        counters in one transaction can deadlock.
        """
        encoded = []
        for report in reports:
            encoder = codec.Encoder()
            ending, task = ending_of(report.outcome, encoder), report.task
            logs = [stored_log(chunk, now) for chunk in report.log]
            encoded.append(EncodedReport(task.uuid, task.lease, ending, encoder.payloads, logs))
        return self._session.dialect.record(self._session.executor, encoded, now)

    def release(self, held: Sequence[tuple[str, int]], now: int) -> list[ReleasedTask]:
        """Release tasks unfinished, given by id and lease.

        Those with limits or rates give their slots back, and wait for new ones.
        """
        rows = self._session.dialect.release(self._session.executor, held, now)
        released = [ReleasedTask(*row) for row in rows]
        waiting = [task.uuid for task in released if task.state == TaskState.WAITING]
        self._session.admission.give_back(waiting)
        return released

    def park(self, held: Sequence[tuple[str, int]], due: int, now: int) -> int:
        """Release tasks until `due`; that counts neither as a try nor as a loss."""
        return len(self._session.dialect.release(self._session.executor, held, now, due))

    def park_waiting(self, task_list: str, circuit: str, due: int, now: int) -> int:
        """Postpone due tasks of a list that wait for a circuit breaker, 500 at most."""
        values = {"task_list": task_list, "key": limit_key(circuit), "due": due, "now": now}
        return len(self._session.rows(self._session.dialect.PARK_WAITING, values))

    def heartbeat(self, task_id: str, lease: int, now: int, progress: str | None = None) -> bool:
        """Record that a task is being worked on, and how far; False if the lease was lost."""
        values = {"task": task_id, "lease": lease, "now": now}
        if progress is None:
            return bool(self._session.execute(_HEARTBEAT, values).rowcount)
        return bool(self._session.execute(_PROGRESS, {**values, "progress": progress}).rowcount)

    def cancel_open(self, run_id: str, step_ids: Sequence[str], now: int) -> tuple[bool, list[str]]:
        """Cancel and fence the open tasks of these steps; return the limits of those that had some.

        True if that brought a join counter to zero: then the caller must evaluate its reports.
        """
        if not step_ids:
            return False, []
        canceled = list(self._in_portions(_CANCEL, step_ids, run=run_id, now=now))
        # Lock order: join counters by id.
        counts = sorted(Counter(row.join_id for row in canceled if row.join_id).items())
        remaining = [
            self._session.rows(COUNT_DOWN, (count, now, join_id))[0][0] for join_id, count in counts
        ]
        limits = [row.limits for row in canceled if row.limits]
        return any(number <= 0 for number in remaining), limits

    def hold(self, run_id: str, now: int) -> list[str]:
        """Keep workers from the pending tasks of a run, and from running ones that they release.

        Returns the limits of those that have some: a held task takes no slot.
        """
        held = self._session.execute(_HOLD, {"run": run_id, "now": now}).scalars()
        return [limits for limits in held if limits]

    def end_hold(self, run_id: str, now: int) -> tuple[dict[str, int], dict[str, str]]:
        """Make the held tasks of a run pending, or let them wait for a slot again.

        Returns the number of due ones by task list, and the queues of the others with their limits.
        """
        rows = self._session.execute(_END_HOLD, {"run": run_id, "now": now}).all()
        again = [row.uuid for row in rows if row.state == TaskState.WAITING]
        self._session.admission.give_back(again)
        due = Counter(
            row.task_list_name for row in rows if row.state == TaskState.PENDING and row.due <= now
        )
        waiting = {row.queue: row.limits for row in rows if row.state == TaskState.WAITING}
        return dict(due), waiting

    def recorded_counts(self, run_ids: Sequence[str], most: int) -> dict[str, int]:
        """Return for each run the number of results that are recorded and not evaluated.

        Up to `most` of each run are counted.
        """
        text = in_dialect(_RECORDED_COUNTS, self._session.dialect)
        rows = self._session.rows(text, (most, json.dumps(list(run_ids))))
        return {run_id: count for run_id, count in rows}  # noqa: C416 - rows are not tuples
