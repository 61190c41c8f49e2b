"""A runner that drives one run in its own process, and lets a model do the steps without a handler.

    runner = ClaudeAgentRunner(engine, tools, model="claude-…")
    result = runner.run(program, {"topic": "kettles"})

It registers no server and takes tasks of its run alone, by the worker that all agents have.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Self

from flowengine.authoring import FunctionFacet, Workflow, event_facet_named
from flowengine.engine import Engine
from flowengine.engine.in_flight import is_alive
from flowengine.engine.recovery import report_lost_tries
from flowengine.engine.results import ExecutionResult
from flowengine.errors import RunnerRefused
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.states import TaskState
from flowengine.models import Anthropic, Chunk, Model, ModelRetry
from flowengine.models.protocol import MAX_TOKENS, TIMEOUT
from flowengine.program import Program
from flowengine.program.nodes import FacetDeclaration, FacetKind, Json, Namespace
from flowengine.program.parser import parse_program
from flowengine.program.standard import SLEEP, SLEEP_UNTIL, is_built_in
from flowengine.sdk.connection import connected_engine
from flowengine.sdk.handlers import Blocking, run_in_place
from flowengine.sdk.model_step import ModelLimits, ModelSteps
from flowengine.sdk.model_tools import ModelTools
from flowengine.sdk.results import CallbackResults
from flowengine.sdk.stand_in import PollerStandIn
from flowengine.sdk.tool_registry import ToolRegistry
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.store.driven_runs import OpenTask
from flowengine.worker import TaskWorker
from flowengine.worker.claimed_tasks import ClaimState
from flowengine.worker.handlers import Handler
from flowengine.worker.spool import Spool

_SHORTEST, _LONGEST = 0.02, 1.0  # seconds between two looks at a run that waits
_WAITED_TIMERS = frozenset({SLEEP, SLEEP_UNTIL})


class ClaudeAgentRunner:
    """Runs workflows with a model, synchronously, one step at a time."""

    def __init__(
        self,
        engine: Engine,
        tool_registry: ToolRegistry | None = None,
        model: Model | str = "",
        max_dispatches: int = 100,
        *,
        tools: Collection[str] | None = None,
        facets: Collection[str] | None = None,
        max_turns: int = 20,
        max_tokens: int = MAX_TOKENS,
        timeout: float = TIMEOUT,
        retry: ModelRetry | None = None,
        on_chunk: Callable[[Chunk], object] | None = None,
    ) -> None:
        """`model` is a model, or the name of one of Anthropic's.

        Steps are given to the registry's handlers, else to the model. `tools` are the handlers
        that the model may call, all by default; `facets` are those that the model may do, others
        are left to other agents. `max_dispatches` limits the steps of one call of
        `run`, `max_turns` the answers for one step, `max_tokens` and `timeout` (seconds) each
        answer. `on_chunk` receives the pieces of answers as they come.
        """
        self.engine, self.tools = engine, tool_registry or ToolRegistry()
        named = Anthropic(model if isinstance(model, str) else "")
        self._own_model = named if isinstance(model, str) else None
        self.model: Model = named if isinstance(model, str) else model
        self._facets = None if facets is None else frozenset(facets)
        self.max_dispatches = max_dispatches
        _check(max_dispatches=max_dispatches, max_turns=max_turns, max_tokens=max_tokens)
        _check(timeout=timeout)
        if unknown := sorted(set(tools or ()) - set(self.tools.registered_names())):
            known = ", ".join(self.tools.registered_names()) or "none"
            raise RunnerRefused(
                f"tools names {', '.join(map(repr, unknown))}, and the registry has: {known}"
            )
        limits = ModelLimits(max_turns, max_tokens, timeout, retry or ModelRetry())
        self._model_tools: dict[str, ModelTools] = {}
        identity = WorkerIdentity(_this_machine(), uuid.uuid4().hex, os.getpid())
        storable = CallbackResults(engine, self._find).storable
        self._worker = TaskWorker(
            engine, identity, self.tools.table.names, find=self._find, storable=storable
        )
        self._steps = ModelSteps(
            engine, self.model, self._tools_of, self._task_of, storable, limits, tools, on_chunk
        )
        self._identity, self._recovery = identity, PollerStandIn()
        self._owns_engine = False

    @classmethod
    def connect(
        cls,
        database_url: str = "",
        tool_registry: ToolRegistry | None = None,
        model: Model | str = "",
        *,
        settings: Settings | None = None,
        **options: Any,
    ) -> Self:
        """Return a runner on a database, with an engine of its own; `close` closes it.

        Without a URL it takes the one of the settings, those of the environment by default.
        """
        engine = connected_engine(database_url, settings)
        try:
            runner = cls(engine, tool_registry, model, **options)
        except BaseException:
            engine.close()
            raise
        runner._owns_engine = True
        return runner

    def close(self) -> None:
        """Close the engine if `connect` has made it, and the model if it was given by name."""
        if self._own_model is not None:
            self._own_model.close()
        if self._owns_engine:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- runs ---

    def run(
        self,
        program: Workflow[..., Any] | Program | Mapping[str, Any],
        inputs: Mapping[str, Json] | None = None,
        *,
        workflow: str = "",
        wait: float | None = None,
        **options: Any,
    ) -> ExecutionResult:
        """Start a run and drive it, until it ends or waits for somebody else.

        `program` is a workflow, or a program with the name of its `workflow`, which may be left
        out if there is one. `wait` limits the seconds that it waits for others: for a retry, a
        sleep, a task that another process holds. `options` are those of `Engine.start`.
        """
        if isinstance(program, Workflow):
            workflow = program.name
            program = program.program()
        name = workflow or _only_workflow(program)
        run = self.engine.start(program, name, dict(inputs or {}), **options)
        return self.resume(run.id, wait=wait)

    def resume(self, run_id: str, *, wait: float | None = None) -> ExecutionResult:
        """Drive an existing run, as one whose runner was killed. It is not begun again.

        Nobody asks a model again for an answer that is recorded. Tasks of a runner of this machine
        that has died are taken over at once, those of other machines after `server_timeout`.
        Raises UnknownRun, and RunnerRefused after `max_dispatches` steps: resume it once more.
        """
        self._refuse_event_loop()
        engine, dispatches, pause = self.engine, 0, _SHORTEST
        ends = None if wait is None else time.monotonic() + wait
        Spool(engine.settings.spool_directory).deliver(engine)
        engine.resume(run_id)
        try:
            while True:
                info = engine.get(run_id)
                if info.is_final:
                    return info.as_result()
                due, is_waiting = self._look(run_id)
                if due and dispatches >= self.max_dispatches:
                    raise RunnerRefused(
                        f"run {run_id} has not ended after {dispatches} steps: raise "
                        f"max_dispatches, or go on with resume({run_id!r})"
                    )
                if due and self._worker.poll_this(due[0].task_list, due[0].uuid):
                    dispatches, pause = dispatches + 1, _SHORTEST
                    continue
                if not is_waiting or (ends is not None and time.monotonic() >= ends):
                    return info.as_result()
                self._recovery.watch(engine)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
        finally:
            self._worker.client.end()

    def _refuse_event_loop(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RunnerRefused(
            "a runner works in the thread of its caller, where an event loop runs already; call "
            "it with asyncio.to_thread"
        )

    def _look(self, run_id: str) -> tuple[list[OpenTask], bool]:
        """Return the tasks that are due, and whether others will be without somebody's answer."""
        with self.engine.database.read() as session:
            now = session.now()
            tasks = session.driven_runs.open_tasks(run_id)
            timers = session.driven_runs.timers(run_id)
        due = [
            task
            for task in tasks
            if task.state == TaskState.PENDING and task.due <= now and self._does(task.name)
        ]
        if not due and self._take_over(tasks):
            return self._look(run_id)
        sleeps = any(kind in _WAITED_TIMERS for kind, _ in timers)
        return due, bool(tasks) or sleeps

    def _take_over(self, tasks: Collection[OpenTask]) -> bool:
        """End the tries of runners of this machine that have died; True if there were any."""
        dead = {
            task.boot_id
            for task in tasks
            if task.state == TaskState.RUNNING
            and task.server_id == self._identity.server_id
            and task.boot_id is not None
            and task.pid is not None
            and not is_alive(task.pid)
        }
        if not dead:
            return False
        with self.engine.database.read() as session:
            held = session.recovery.held_by_boots(sorted(dead))
        return len(report_lost_tries(self.engine, held, "the runner")) < len(held)

    # --- handlers ---

    def _does(self, name: str) -> bool:
        """Whether this runner works on tasks of a facet."""
        if self._facets is None or is_built_in(name) or self.tools.has_handler(name):
            return True
        return name in self._facets or name.rpartition(".")[2] in self._facets

    def _find(self, name: str) -> Handler | None:
        found = self.tools.find(name)
        if found is not None:
            return Blocking(found, run_in_place)
        own = event_facet_named(name)
        # A durable function is code of this process; the model does the calls without a handler.
        if not is_built_in(name) and not isinstance(own, FunctionFacet):
            return self._steps
        return None if own is None else Blocking(own, run_in_place)

    def _task_of(self, step_id: str) -> TaskDefinition:
        started = self._worker.claimed_tasks.in_states(ClaimState.STARTED)
        return next(entry.task for entry in started if entry.task.step_id == step_id)

    def _tools_of(self, task: TaskDefinition) -> ModelTools:
        if (found := self._model_tools.get(task.flow_id)) is None:
            settings = self.engine.settings
            with self.engine.database.read() as session:
                plan = self.engine.programs.plan(session, task.flow_id)
            limits = (settings.max_value_bytes, settings.max_json_depth)
            found = ModelTools(self.tools, plan, limits, settings.max_schema_checks)
            self._model_tools = {task.flow_id: found}  # of one program at a time
        return found


def _check(**numbers: float) -> None:
    for name, value in numbers.items():
        kinds = (int, float) if name == "timeout" else (int,)
        if type(value) not in kinds or value <= 0:
            raise RunnerRefused(f"{name} is a number greater than 0, not {value!r}")


def _this_machine() -> str:
    """Return an id that the runners of one machine share: there a pid says who lives."""
    return hashlib.blake2b(f"runner:{socket.gethostname()}".encode(), digest_size=16).hexdigest()


def _only_workflow(program: Program | Mapping[str, Any]) -> str:
    parsed = program if isinstance(program, Program) else parse_program(program)
    found: list[str] = []
    ahead = [("", declared) for declared in parsed.declarations]
    while ahead:
        prefix, node = ahead.pop()
        if isinstance(node, Namespace):
            ahead += [(f"{prefix}{node.name}.", inner) for inner in node.declarations]
        elif isinstance(node, FacetDeclaration) and node.kind is FacetKind.WORKFLOW:
            found.append(f"{prefix}{node.name}")
    if len(found) != 1:
        listed = ", ".join(sorted(found)) or "none"
        raise RunnerRefused(f"name the workflow to run: run(…, workflow=NAME); there are: {listed}")
    return found[0]
