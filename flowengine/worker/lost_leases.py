"""Tries whose lease is lost: their run was cancelled, or their step timed out or was answered.

Their cancel token is set and their coroutine cancelled. A thread goes on until its code returns;
the main process of a worker kills the pool child of a cancelled try after a grace.
"""

from __future__ import annotations

from flowengine.engine import Engine
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.async_tries import AsyncTries
from flowengine.worker.claimed_tasks import ClaimedTasks, ClaimState

_CHECK_SECONDS = 2.0  # age of a claim before its lease is checked: short tries cost no query


class LostLeases:
    def __init__(
        self,
        engine: Engine,
        identity: WorkerIdentity,
        claimed: ClaimedTasks,
        async_tries: AsyncTries,
    ) -> None:
        self._engine, self._identity = engine, identity
        self._claimed, self._async_tries = claimed, async_tries

    def check(self) -> None:
        old = self._claimed.clock() - _CHECK_SECONDS
        started = [e for e in self._claimed.in_states(ClaimState.STARTED) if e.since < old]
        if not started:
            return
        with self._engine.database.read() as session:
            held = session.recovery.held_by_boots([self._identity.boot_id])
        keys = {(task.task_id, task.lease) for task in held}
        # A try that has ended since the query is not started any more.
        lost = [e for e in started if e.key not in keys and e.state == ClaimState.STARTED]
        for entry in lost:
            entry.lose()
        if lost:
            self._async_tries.cancel_lost(lost)
