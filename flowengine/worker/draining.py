"""Answer a bell: claim what is due, run it, report it, until nothing is left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy.exc import DBAPIError

from flowengine.engine import Engine
from flowengine.engine.marks import Marks
from flowengine.engine.sweeps import dropped_tries
from flowengine.errors import StoreError
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.happenings import TryOutcome
from flowengine.store.claims import Claimant
from flowengine.store.sweeping import held_of
from flowengine.worker.spool import Spool
from flowengine.worker.tally import Tally
from flowengine.worker.trying import run_try

log = logging.getLogger("flowengine")


class Drainer:
    """Works on tasks for one server. Shared by all threads of its pool."""

    def __init__(
        self,
        engine: Engine,
        claimant: Claimant,
        names: Callable[[], Sequence[str]],
        show: Callable[[TaskDefinition, TryOutcome, float], object] | None = None,
    ) -> None:
        self._engine, self._claimant, self._names = engine, claimant, names
        self._show = show
        settings = engine.settings
        self._spool = Spool(settings.spool_directory)
        self._marks = Marks(settings.spool_directory, claimant.boot_id)
        self.tally = Tally(engine.database, claimant.server_id, settings.heartbeat_interval / 2)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._held: dict[str, TaskDefinition] = {}
        self._stopping = False

    def drain(self, task_list: str) -> int:
        """Work until the list has nothing for us or the slice is over; return what was done.

        A slice that ends rings again: other lists must have their turn in this pool.
        """
        ends = time.monotonic() + self._engine.settings.drain_slice
        done = 0
        while not self._stopping:
            claimed = self._engine.claim(self._names(), task_list, self._claimant, most=1)
            if not claimed:
                return done
            for task in claimed:
                self.work_on(task)
                done += 1
            if time.monotonic() > ends:
                self._engine.bell.ring({task_list: 1})
                return done
        return done

    def work(self, task_list: str, task_ids: Sequence[str]) -> int:
        """Work on these tasks, as a chord's header: its callback evaluates, so we do not.

        Claimed one by one: when one turns out slow, those behind it are free for others.
        """
        ends = time.monotonic() + self._engine.settings.batch_slice
        done = 0
        for position, task_id in enumerate(task_ids):
            if self._stopping or time.monotonic() > ends:
                self._engine.bell.ring({task_list: len(task_ids) - position})
                break
            task = self._engine.claim_one(task_id, self._claimant)
            if task is not None:
                self.work_on(task, in_chord=True)
                done += 1
        return done

    def work_on(self, task: TaskDefinition, *, in_chord: bool = False) -> None:
        """Run a claimed task and report it."""
        with self._lock:
            self._held[task.uuid] = task
        try:
            began = time.monotonic()
            with self._marks.begun(task.uuid):  # until it is reported: it may not run twice
                outcome = run_try(task, lambda: self._beat(task))
                seconds = time.monotonic() - began
                self._report(task, outcome, in_chord)
            self.tally.count(task, outcome)
            if self._show is not None:
                self._show(task, outcome, seconds)
        finally:
            with self._idle:
                self._held.pop(task.uuid, None)
                self._idle.notify_all()

    def _beat(self, task: TaskDefinition) -> bool:
        try:
            return self._engine.heartbeat(task)
        except (DBAPIError, StoreError, OSError):
            return True  # nobody can say that the task was taken away, so it goes on

    def _report(self, task: TaskDefinition, outcome: TryOutcome, in_chord: bool) -> None:
        try:
            self._engine.report(task, outcome, in_chord=in_chord)
        except (DBAPIError, StoreError, OSError) as problem:
            path = self._spool.keep(task, outcome)
            log.warning(
                "the report of %s waits in %s: %s",
                task.step_path,
                path,
                problem,
                extra={"action": "report_spooled", "run": task.workflow_id},
            )

    def claim_no_more(self) -> None:
        self._stopping = True

    def stop(self, patience: float) -> None:
        """Claim nothing more, wait a moment for what runs, and hand the rest back."""
        self.claim_no_more()
        with self._idle:
            self._idle.wait_for(lambda: not self._held, timeout=patience)
            left = list(self._held.values())
        dropped_tries(self._engine, [held_of(task) for task in left])
        self.tally.flush()
        self._marks.forget_all()
