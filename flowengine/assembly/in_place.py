"""Runs that are executed in place: what `task_always_eager` means for a workflow.

Test suites set it to have no worker and no broker. `workflow.start(...)` then returns when the run
has ended, or waits for something that this process cannot do. The run is stored as any other.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from flowengine.agents import agents_of
from flowengine.assembly.launcher import EngineLauncher
from flowengine.authoring import StartOptions, Workflow, event_facet_named
from flowengine.dispatch import NullNotifier
from flowengine.engine import Engine, Run
from flowengine.engine.handles import executing
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.evaluator.states import StepState
from flowengine.program.nodes import Json
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import CircuitBreakers
from flowengine.worker.execution import execute_try
from flowengine.worker.step_logs import StepLogs

_POLL = 0.05  #: seconds until tasks are read again of which none is due


class InPlaceLauncher(EngineLauncher):
    """Starts runs and executes them in the thread that starts them."""

    def __init__(self, settings: Settings, redis_url: str) -> None:
        self.pid = os.getpid()
        database = Database(settings.database_url, schema=settings.schema)
        ensure_schema(database)
        self.engine = Engine(database, notifier=_Waited(self), settings=settings)
        agents_of(self.engine)
        super().__init__(self.engine)
        self._breakers = CircuitBreakers(settings, redis_url)
        boot_id = uuid.uuid4().hex
        self._identity = WorkerIdentity(boot_id, boot_id, self.pid)
        self._logs = StepLogs(self.engine, is_durable=False) if settings.log_capture else None
        self._unfinished: dict[str, None] = {}

    def start(
        self, workflow: Workflow[..., Any], inputs: dict[str, Json], options: StartOptions
    ) -> Run[Any]:
        run = super().start(workflow, inputs, options)
        self._unfinished[run.id] = None
        if options.connection is None:  # otherwise nobody sees it until the caller commits
            self._execute(run.id)
        return run

    def start_many(
        self,
        workflow: Workflow[..., Any],
        inputs: list[dict[str, Json]],
        options: StartOptions,
        keys: Sequence[str] | None = None,
    ) -> list[Run[Any]]:
        runs = super().start_many(workflow, inputs, options, keys)
        self._unfinished.update(dict.fromkeys(run.id for run in runs))
        self.execute_unfinished()
        return runs

    def execute_unfinished(self) -> None:
        """Go on with runs that waited for an answer or a commit; not inside a step of one."""
        if executing.get() is not None:
            return
        for run_id in list(self._unfinished):
            self._execute(run_id)

    def _execute(self, run_id: str) -> None:
        """Execute the tasks of a run and its child runs, until it ends or needs somebody else."""
        while not self.engine.get(run_id).is_final:
            pending = self._pending(run_id)
            if not pending:
                return
            with self.engine.database.read() as session:
                now = session.now()
            due = [task for task in pending if task.due <= now]
            if not due:
                time.sleep(min(_POLL, (min(task.due for task in pending) - now) / 1000))
            for task in due:
                self._try(task)
        self._unfinished.pop(run_id, None)

    def _pending(self, run_id: str) -> list[TaskDefinition]:
        """Return the tasks that wait and whose code this process has."""
        found = [
            task
            for task in self.engine.tasks(run_id)
            if task.state == TaskState.PENDING and event_facet_named(task.name)
        ]
        for step in self.engine.steps(run_id) if not found else ():
            if step.child_run and step.state not in StepState.FINAL:
                found += self._pending(step.child_run)
        return found

    def _try(self, task: TaskDefinition) -> None:
        engine = self.engine
        claimed = engine.claim_one(task.uuid, task.task_list_name, self._identity)
        if claimed is None:
            return  # canceled, or a worker has it
        permit = self._breakers.permit(claimed) if claimed.circuit else None
        if permit is not None and not permit.granted:
            engine.park([claimed], claimed.circuit, permit.retry_after)
            return
        beat = partial(engine.heartbeat, claimed)
        if self._logs is None:
            engine.report(claimed, execute_try(engine, claimed, beat, permit))
            return
        outcome, lines = self._logs.executed(
            lambda open_log: execute_try(engine, claimed, beat, permit, open_log=open_log)
        )
        engine.report(claimed, outcome, log=lines)


class _Waited(NullNotifier):
    """Goes on with unfinished runs when a caller waits for a result."""

    def __init__(self, launcher: InPlaceLauncher) -> None:
        self._launcher = launcher

    def flush(self) -> None:
        self._launcher.execute_unfinished()
