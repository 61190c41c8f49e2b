"""Reports: how tries ended, recorded once.

Every write names the state and the lease it requires (fencing), so a late or repeated report
changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import and_, bindparam, func, select, update

from flowengine.evaluator import TaskState
from flowengine.evaluator.states import tasks_that_may_become
from flowengine.evaluator.triggers import Report
from flowengine.store import codec
from flowengine.store.backend import EncodedReport
from flowengine.store.commits import ending_of
from flowengine.store.parts import Part
from flowengine.store.records import limit_key
from flowengine.store.tables import TASK_IS_REPORTED, TASK_IS_RUNNING, JoinRow, TaskRow

_task = TaskRow.__table__  # type: ignore[attr-defined]
_join = JoinRow.__table__  # type: ignore[attr-defined]
_HEARTBEAT = (
    update(_task)
    .where(
        and_(_task.c.uuid == bindparam("task"), _task.c.lease == bindparam("held"), TASK_IS_RUNNING)
    )
    .values(activity=bindparam("now"))
)
_CANCEL = (
    update(_task)
    .where(
        and_(
            _task.c.run_id == bindparam("run"),
            _task.c.step_id.in_(bindparam("ids", expanding=True)),
            _task.c.state.in_(tasks_that_may_become(TaskState.CANCELED)),
        )
    )
    .values(
        state=TaskState.CANCELED,
        lease=_task.c.lease + 1,
        taken_in=True,
        updated=bindparam("now"),
    )
    .returning(_task.c.join_id)
)
_COUNT_DOWN = (
    update(_join)
    .where(_join.c.id == bindparam("join"))
    .values(remaining=_join.c.remaining - bindparam("count"), updated=bindparam("now"))
    .returning(_join.c.remaining)
)
_RECORDED_COUNTS = (
    select(_task.c.run_id, func.count())
    .where(and_(_task.c.run_id.in_(bindparam("runs", expanding=True)), TASK_IS_REPORTED))
    .where(_task.c.state == TaskState.COMPLETED)
    .group_by(_task.c.run_id)
)


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
            encoded.append(EncodedReport(task.uuid, task.lease, ending, encoder.payloads))
        return self._session.dialect.record(self._session.executor, encoded, now)

    def release(self, held: Sequence[tuple[str, int]], now: int) -> list[str]:
        """Release tasks unfinished, given by id and lease; return their task lists."""
        return self._session.dialect.release(self._session.executor, held, now)

    def park(self, held: Sequence[tuple[str, int]], due: int, now: int) -> int:
        """Release tasks until `due`; that counts neither as a try nor as a loss."""
        return self._session.dialect.park(self._session.executor, held, due, now)

    def park_waiting(self, task_list: str, circuit: str, due: int, now: int) -> int:
        """Postpone due tasks of a list that wait for a circuit breaker, 500 at most."""
        values = {"task_list": task_list, "key": limit_key(circuit), "due": due, "now": now}
        return len(self._session.rows(self._session.dialect.PARK_WAITING, values))

    def heartbeat(self, task_id: str, lease: int, now: int) -> bool:
        """Record that a task is being worked on; False if the lease was lost."""
        values = {"task": task_id, "held": lease, "now": now}
        return bool(self._session.execute(_HEARTBEAT, values).rowcount)

    def cancel_open(self, run_id: str, step_ids: Sequence[str], now: int) -> bool:
        """Cancel and fence the open tasks of these steps.

        True if that brought a join counter to zero: then the caller must evaluate its reports.
        """
        if not step_ids:
            return False
        values = {"run": run_id, "ids": list(step_ids), "now": now}
        canceled = self._session.execute(_CANCEL, values).scalars()
        # Lock order: join counters by id.
        counts = sorted(Counter(join_id for join_id in canceled if join_id).items())
        remaining = [
            self._session.execute(
                _COUNT_DOWN, {"join": join_id, "count": count, "now": now}
            ).scalar_one()
            for join_id, count in counts
        ]
        return any(number <= 0 for number in remaining)

    def recorded_counts(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Return for each run the number of results that are recorded and not evaluated."""
        if not run_ids:
            return {}
        rows = self._session.execute(_RECORDED_COUNTS, {"runs": list(run_ids)})
        return {run_id: count for run_id, count in rows}  # noqa: C416 - rows are not tuples
