"""The guard of a pool child: it ends the child after its worker was killed.

On Linux Celery has the kernel kill the children of a main process that dies by SIGKILL. A child
that was just forked is missed: it asks the kernel too late. Two of those hold each other's pipes
open, so that neither sees the end of the worker, and both would stay for ever. On other systems a
child that runs a step goes on with it. Its server is declared dead, and another worker runs the
step again; the lease refuses the report of the first. The guard keeps the child from claiming more
tasks. It ends an idle one after some seconds, and another one when others have taken over every
step that it runs.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable

from flowengine.engine import Engine
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.background import BackgroundJobs
from flowengine.worker.claimed_tasks import ClaimState
from flowengine.worker.task_worker import TaskWorker

log = logging.getLogger("flowengine")

_INTERVAL = 1.0  # seconds between two checks; while the worker lives, one is a system call
_IDLE_SECONDS = 3.0  # that an idle child gets to end by itself: it stores its last lines then

#: The engine and the worker of a child; None before its first message.
Parts = Callable[[], tuple[Engine, TaskWorker] | None]


class OrphanGuard:
    def __init__(
        self,
        main_pid: int,
        identity: WorkerIdentity,
        parts: Parts,
        executes_message: Callable[[], bool],
    ) -> None:
        """`executes_message` tells whether the child executes a message, also of a plain task."""
        self._main_pid, self._identity = main_pid, identity
        self._parts, self._executes_message = parts, executes_message
        self._busy_at: float | None = None  #: when an orphan was seen busy last, or was found
        self._jobs = BackgroundJobs(_INTERVAL, [self.check])

    def begin(self) -> None:
        """Guard this process, which has asked the kernel for its end, where there is such a way."""
        if os.getppid() != self._main_pid:
            self._end_child("it had only begun")
        self._jobs.begin()

    def check(self) -> None:
        if os.getppid() == self._main_pid:
            return
        parts, now = self._parts(), time.monotonic()
        if self._busy_at is None:
            self._busy_at = now
        if parts is not None:
            parts[1].claim_no_more()  # a claim may be under way
        if (running := _running(parts)) and parts is not None:
            self._busy_at = now
            if self._is_superseded(parts[0], running):
                self._end_child("its steps are run by others")
        elif self._executes_message():
            self._busy_at = now
        elif now - self._busy_at >= _IDLE_SECONDS:
            self._end_child("it runs nothing")

    def _is_superseded(self, engine: Engine, running: set[tuple[str, int]]) -> bool:
        """Whether this process holds the lease of none of the steps that it runs."""
        held = engine.held_since(self._identity, 0.0)
        return running.isdisjoint((task.task_id, task.lease) for task in held)

    def _end_child(self, why: str) -> None:
        log.warning(
            "ending pool child %d: its worker %d was killed, and %s",
            os.getpid(),
            self._main_pid,
            why,
            extra={"action": "orphan_ended"},
        )
        os.kill(os.getpid(), signal.SIGKILL)


def _running(parts: tuple[Engine, TaskWorker] | None) -> set[tuple[str, int]]:
    if parts is None:
        return set()
    return {entry.key for entry in parts[1].claimed_tasks.in_states(*ClaimState.ACTIVE)}
