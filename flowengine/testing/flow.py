"""Run decorated workflows in a test: inline, step by step, with a clock that the test moves.

The test decides when tasks run, time passes and the watchdog ticks, all in its own thread on
an in-memory database. The code is that of the engine; only the waiting is replaced.
"""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar

from flowengine.agents import TurnHandle, agents_of
from flowengine.assembly import EngineLauncher
from flowengine.authoring import (
    StartOptions,
    Workflow,
    event_facet_named,
    event_facet_names,
    set_launcher_source,
)
from flowengine.engine import Engine, Run
from flowengine.engine.liveness import LivenessWindow, observe
from flowengine.engine.recovery import (
    admit_waiting_tasks,
    evaluate_reported_runs,
    fire_due_timers,
    notify_due_lists,
    recover,
)
from flowengine.errors import FlowengineError
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.triggers import Failed, Outcome, Succeeded
from flowengine.program.nodes import Json
from flowengine.secret_keys import set_secret_key_source
from flowengine.settings import Settings
from flowengine.store import Database, Session, ensure_schema
from flowengine.store.claims import WorkerIdentity
from flowengine.store.servers import ServerDefinition, ServerState
from flowengine.worker import CircuitBreakers
from flowengine.worker.activations import Activations
from flowengine.worker.execution import OpenLog, execute_try
from flowengine.worker.step_logs import StepLogs

P = ParamSpec("P")
R = TypeVar("R")


class Clock:
    """A clock that advances only on request."""

    def __init__(self, start: int = 1_700_000_000_000) -> None:
        self.now = start  #: milliseconds since the epoch

    def __call__(self) -> int:
        return self.now

    def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0) -> None:
        self.now += round((seconds + 60 * minutes + 3600 * hours) * 1000)


@dataclass(eq=False, repr=False)
class NothingToClaim(FlowengineError):
    """The test claims a step that has no pending task."""

    wanted: str
    pending: list[str]

    def __str__(self) -> str:
        return f"no task of {self.wanted!r} is pending; pending are: {self.pending or 'none'}"


class Flow:
    """An engine controlled by the test; a context manager."""

    def __init__(self, *, store_url: str = "sqlite://", settings: Settings | None = None) -> None:
        self.clock = Clock()
        schema = settings.schema if settings else ""
        self.database = Database(store_url, schema=schema, clock=self.clock)
        try:
            ensure_schema(self.database, upgrade=True)
            self.engine = Engine(self.database, settings=settings)
            now = lambda: self.clock.now / 1000  # noqa: E731
            self.breakers = CircuitBreakers(self.engine.settings, clock=now)
            self.breakers.obey(self.engine.breakers)
            self.logs = StepLogs(self.engine, is_durable=False)
            self.activations = Activations(self.engine, event_facet_named, strict=True)
            agents_of(self.engine)  # turns go on after commits, and in `watchdog`
        except BaseException:
            self.database.close()  # nobody enters it: Python 3.13 warns of open connections
            raise
        self._dead: set[str] = set()
        self._workers: dict[str, FlowWorker] = {}

    def __enter__(self) -> Self:
        if "celery" in sys.modules:  # otherwise no facet is a Celery task
            from flowengine.tasks.task_steps import offer_task_steps

            offer_task_steps()
        # `workflow.start()` in code under test uses this engine too.
        self._outer = set_launcher_source(lambda: EngineLauncher(self.engine))
        keys = self.engine.settings.secret_keys
        self._outer_keys = set_secret_key_source((lambda: keys) if keys else None)
        return self

    def __exit__(self, *_: object) -> None:
        set_launcher_source(self._outer)
        set_secret_key_source(self._outer_keys)
        self.engine.close()

    # --- running ---

    def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Start a workflow without running any task."""
        inputs = workflow.inputs(*args, **kwargs)
        return EngineLauncher(self.engine).start(workflow, inputs, StartOptions())

    def run(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a workflow, run it to its end and return its result.

        The clock is moved to the due time of the next task, so retries do not wait.
        """
        run = self.start(workflow, *args, **kwargs)
        self.settle()
        while not run.info().is_final and self._wait_for_next(run):
            self.settle()
        return run.result(timeout=0)

    def run_turn(self, turn: TurnHandle[R]) -> R:
        """Run a turn to its end and return its result.

        The clock is moved over retries, deadlines of tools and the budget of seconds. Raises
        TurnFailed, and TimeoutError if the turn waits for a person.
        """
        self.settle()
        while turn.info().finished is None and self._wait_for_next(None):
            self.settle()
        return turn.result(timeout=0)

    def settle(self) -> int:
        """Run all due tasks and their successors; return the number of tries."""
        worker = self.worker("inline")
        done = 0
        while task := worker.claim_next():
            worker.work_on(task)
            done += 1
        return done

    def _wait_for_next(self, run: Run[Any] | None) -> bool:
        """Move the clock to the next time at which a run or a turn goes on; False: there is none.

        Without a run, those of all runs that a turn may wait for.
        """
        with self.database.read() as session:
            awaited = [] if run is None else _with_children(session, run.id)
            runs = session.agent_lists.open_runs() + awaited
            due = session.agent_lists.deadlines() + session.admission.next_looks()
            for run_id in runs:
                due += session.recovery.timers(run_id).values()
        waits = (TaskState.PENDING, TaskState.WAITING)
        tasks = [task for run_id in runs for task in self.engine.tasks(run_id)]
        due += [task.due for task in tasks if task.state in waits]
        due = [moment for moment in due if moment > self.clock.now]
        if not due:
            return False  # nothing waits for the clock
        self.clock.now = min(due)
        fire_due_timers(self.engine)
        evaluate_reported_runs(self.engine)
        admit_waiting_tasks(self.engine)
        agents_of(self.engine).recover()
        return True

    def watchdog(self) -> None:
        """Run one recovery pass."""
        with self.database.read() as session:
            observation = observe(session, LivenessWindow(self.clock.now))

        def death(server: ServerDefinition) -> str | None:
            return "was killed" if server.boot_id in self._dead else None

        recover(self.engine, observation, death, notify_due_lists)

    # --- workers ---

    def worker(self, name: str) -> FlowWorker:
        """Return the worker of that name, created on first use."""
        if name not in self._workers:
            self._workers[name] = FlowWorker(self, name)
        return self._workers[name]

    def paths(self, run: Run[Any]) -> dict[str, str]:
        """Return the state of each step by its path."""
        return {
            step.path: step.state
            for step in run.steps()
            if step.object_type not in ObjectType.BLOCKS
        }


def _with_children(session: Session, run_id: str) -> list[str]:
    """Return a run and the open runs that its steps wait for, and theirs."""
    found, pending = [run_id], [run_id]
    while pending:
        pending = [child.id for child in session.waits.children(pending)]
        found += pending
    return found


class FlowWorker:
    """A worker controlled by the test."""

    def __init__(self, flow: Flow, name: str) -> None:
        self._flow = flow
        self._boot = uuid.uuid4().hex
        self._identity = WorkerIdentity(server_id=self._boot, boot_id=self._boot)
        server = ServerDefinition(
            uuid=self._boot,
            server_group="default",
            service_name="flowengine-test",
            server_name=name,
            handlers=event_facet_names(),
            state=ServerState.RUNNING,
            boot_id=self._boot,
            start_time=flow.clock.now,
            ping_time=flow.clock.now,
        )
        with flow.database.write() as session:
            session.servers.register(server)

    def claim(self, run: Run[Any], step: str) -> TaskDefinition:
        """Claim the pending task of a step, given its path or a suffix of it."""
        pending = [
            task for task in self._flow.engine.tasks(run.id) if task.state == TaskState.PENDING
        ]
        for task in pending:
            if task.step_path == step or task.step_path.endswith(f".{step}"):
                claimed = self._flow.engine.claim_one(
                    task.uuid, task.task_list_name, self._identity
                )
                assert claimed is not None
                return claimed
        raise NothingToClaim(step, [task.step_path for task in pending])

    def claim_next(self) -> TaskDefinition | None:
        """Claim the first due task of any task list that this process has code for."""
        with self._flow.database.read() as session:
            lists = session.recovery.pending_lists()
        for task_list in lists:
            task = self._flow.engine.claim_task(event_facet_names(), task_list, self._identity)
            if task is not None:
                return task
        return None

    def work_on(self, task: TaskDefinition) -> bool:
        """Run the facet and report; False if the report is refused as late.

        Also False if the circuit breaker is open: the task is parked and not run. Raises Divergence
        if the code of a durable function does not repeat what is recorded of it.
        """
        engine = self._flow.engine
        permit = self._flow.breakers.permit(task) if task.circuit else None
        if permit is not None and not permit.granted:
            engine.park([task], task.circuit, permit.retry_after)
            return False
        beat = partial(engine.heartbeat, task)

        def execute(open_log: OpenLog) -> Outcome:
            if task.data_type:
                # No coroutine is kept: each activation replays the function from its record, and
                # a call with other arguments is an error. So every test is a replay test.
                return self._flow.activations.execute(task, beat, open_log)
            return execute_try(engine, task, beat, permit, open_log=open_log)

        outcome, lines = self._flow.logs.executed(execute)
        return engine.report(task, outcome, log=lines)

    def report(self, task: TaskDefinition, result: Json) -> bool:
        """Report a result without running the facet."""
        return self._flow.engine.report(task, Succeeded({"result": result}))

    def fail(self, task: TaskDefinition, message: str) -> bool:
        """Report a failure without running the facet."""
        return self._flow.engine.report(task, Failed({"type": "Error", "message": message}))

    def die(self) -> None:
        """Simulate a kill: the next watchdog tick recovers its claimed tasks."""
        self._flow._dead.add(self._boot)
