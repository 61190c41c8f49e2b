"""The pool children of a worker, as its main process sees them: dead ones, and ones that hang.

The tries of a dead child are reported as lost. A child is killed if it still runs a try that has
shown no activity within its timeout, or one that was cancelled; the pool replaces it.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum

from flowengine.engine import Engine
from flowengine.engine.in_flight import InFlightMarkers, is_alive
from flowengine.engine.recovery import report_lost_tries
from flowengine.settings import Settings
from flowengine.store.recovery_queries import HeldTask
from flowengine.store.servers import ServerDefinition

log = logging.getLogger("flowengine")


class TryEnd(Enum):
    """How a try ended with its pool child."""

    LOST = "lost"
    TIMED_OUT = "timed out"
    CANCELED = "canceled"


#: Is told of each try that has ended so.
TellEnd = Callable[[HeldTask, TryEnd], object]


class PoolChildren:
    """Finds pool children that died or hang while their worker lives."""

    def __init__(
        self,
        settings: Settings,
        server: ServerDefinition,
        clock: Callable[[], float] = time.monotonic,
        tidy: Callable[[], object] = lambda: None,
        tell: TellEnd = lambda _, __: None,
    ) -> None:
        """`tidy` is called before a try is reported as lost: the next one may begin then."""
        self._server, self._clock, self._tidy, self._tell = server, clock, tidy, tell
        self._markers = InFlightMarkers(settings.spool_directory, server.boot_id)
        self._grace = settings.cancel_grace
        self._held: list[HeldTask] = []  #: at the last check
        self._canceled: dict[str, tuple[HeldTask, float]] = {}  #: with the time of their discovery

    def check(self, engine: Engine) -> None:
        """Report the tries of dead children as lost; kill children that hang."""
        with engine.database.autocommit_read() as session:
            held = session.recovery.held_by_boot(self._server.boot_id)
        still = {task.task_id for task in held}
        ended = [task for task in self._held if task.task_id not in still and task.timeout_ms]
        # By the markers, not by the last check: a try may begin and be cancelled since.
        running = self._running_unheld(still)
        silent, canceled = self._how_they_ended(engine, ended, list(running))
        for task in canceled:
            task = replace(task, pid=running[task.task_id])
            self._canceled.setdefault(task.task_id, (task, self._clock()))
        self._end_canceled()
        self._held = held
        dead = [task for task in held if task.pid is not None and not is_alive(task.pid)]
        if dead:
            self._tidy()
        report_lost_tries(engine, dead, "the pool child")
        for task in dead:
            self._tell(task, TryEnd.LOST)
        for task in ended:
            if task.task_id in silent:
                self._kill(task)
                self._tell(task, TryEnd.TIMED_OUT)

    def _how_they_ended(
        self, engine: Engine, ended: Sequence[HeldTask], running: Sequence[str]
    ) -> tuple[set[str], list[HeldTask]]:
        """Return the tasks that were ended for their silence, and those that were cancelled."""
        if not ended and not running:
            return set(), []  # an idle worker asks twice a second
        with engine.database.read() as session:
            silent = session.recovery.timed_out([task.task_id for task in ended])
            return silent, session.recovery.canceled(running)

    def _running_unheld(self, held: Container[str]) -> dict[str, int]:
        """Return the tasks that pool children execute without a lease, with their pids."""
        processes = self._markers.running_by_process()
        processes.pop(self._server.pid or 0, None)  # threads, which cannot be killed
        return {
            task_id: pid for pid, ids in processes.items() for task_id in ids if task_id not in held
        }

    def _running(self, tasks: Sequence[HeldTask]) -> list[HeldTask]:
        """Return the tasks whose try a pool child still runs.

        A thread cannot be killed, and is left out: it stays busy until its code returns.
        """
        pids = {task.pid for task in tasks if task.pid is not None} - {self._server.pid}
        running = {pid: self._markers.running(pid) for pid in pids}
        return [task for task in tasks if task.task_id in running.get(task.pid or 0, ())]

    def _end_canceled(self) -> None:
        """Kill the pool children that run a cancelled try after its grace.

        Not one that runs other tries besides: coroutines, of which one ignores its cancellation.
        """
        running = self._running([task for task, _ in self._canceled.values()])
        self._canceled = {task.task_id: self._canceled[task.task_id] for task in running}
        for task, since in self._canceled.values():
            is_over = self._clock() - since >= self._grace
            if is_over and self._markers.running(task.pid or 0) <= self._canceled.keys():
                self._kill(task)
                self._tell(task, TryEnd.CANCELED)

    def _kill(self, task: HeldTask) -> None:
        """Kill a pool child that still runs a try that failed for its silence, or was cancelled.

        The pool replaces the child.
        """
        if task.pid is not None and self._running([task]):
            log.warning(
                "killing pool child %d, which hangs in %s; the pool replaces it",
                task.pid,
                task.step_path,
                extra={"action": "child_killed", "run": task.run_id, "facet": task.name},
            )
            with suppress(ProcessLookupError):
                os.kill(task.pid, signal.SIGKILL)
