"""The guard of a pool child: it ends the child after its worker was killed.

Pool children outlive a main process that dies by SIGKILL. An idle one ends by itself, but one that
runs a step goes on with it. Its server is declared dead, and another worker runs the step again;
the lease refuses the report of the first. The guard keeps the child from claiming more tasks, and
ends it when others have taken over every step that it runs.
"""

from __future__ import annotations

import logging
import os
import signal

from flowengine.engine import Engine
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.background import BackgroundJobs
from flowengine.worker.claimed_tasks import ClaimState
from flowengine.worker.task_worker import TaskWorker

log = logging.getLogger("flowengine")

_INTERVAL = 1.0  # seconds between two checks; while the worker lives, one is a system call


class OrphanGuard:
    def __init__(
        self, engine: Engine, identity: WorkerIdentity, worker: TaskWorker, main_pid: int
    ) -> None:
        self._engine, self._identity, self._worker = engine, identity, worker
        self._main_pid, self._is_orphan = main_pid, False
        self._jobs = BackgroundJobs(_INTERVAL, [self.check])
        self.begin, self.end = self._jobs.begin, self._jobs.end

    def check(self) -> None:
        if os.getppid() == self._main_pid:
            return
        if not self._is_orphan:
            self._is_orphan = True
            self._worker.claim_no_more()  # a claim may be under way
        elif self._is_superseded():
            log.warning(
                "ending pool child %d: its worker %d was killed, and its steps are run by others",
                os.getpid(),
                self._main_pid,
                extra={"action": "orphan_ended"},
            )
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_superseded(self) -> bool:
        """Whether this process runs steps, and none of them under a lease that it still holds."""
        claimed = self._worker.claimed_tasks
        running = {entry.key for entry in claimed.in_states(*ClaimState.ACTIVE)}
        held = self._engine.held_since(self._identity, 0.0) if running else []
        return bool(running) and running.isdisjoint((task.task_id, task.lease) for task in held)
