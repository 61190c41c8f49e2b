"""Run a program against handlers, in a chosen order of answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowengine.engine import Engine
from flowengine.evaluator import RunState, TaskDefinition, TaskState
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.evaluator.triggers import Outcome as TryOutcome
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema
from flowengine.store.claims import WorkerIdentity

Handler = Callable[[dict[str, Any]], Mapping[str, Any] | None]


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    status: str  #: COMPLETED, FAILED, or WAITING: tasks are outstanding that nobody answers
    outputs: dict[str, Any] | None
    error: str | None  #: path, kind and message of what failed
    tasks: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    steps: dict[str, str] = field(default_factory=dict)  #: path of each step → its state


class NoAnswer(Exception):
    """Raised by a handler that leaves a task unanswered."""


def run_program(
    program: Mapping[str, Any],
    workflow: str,
    inputs: Mapping[str, Any],
    handlers: Mapping[str, Handler],
    *,
    store_url: str = "sqlite://",
    order: str | Sequence[str] = "any",
    redeliver: bool = False,
    seed: int = 0,
    settings: Settings | None = None,
) -> Outcome:
    """Run a program to its end, or until only tasks are left that nobody answers.

    `handlers` maps a qualified facet name to a callable that gets the parameters and gives
    the results; raising means failure. `order` is "any" (oldest task first), "reverse"
    (newest first), "shuffle" or a list of hints ``ns.Facet:param=value``: the first hint
    whose task is outstanding is answered and dropped, without one the oldest task.
    `redeliver` reports everything twice, the second time with other content.
    """
    database = Database(store_url)
    try:
        ensure_schema(database, upgrade=True)
        engine = Engine(database, settings=settings)
        run = engine.start(program, workflow, inputs)
        _Answering(engine, run.id, handlers, order, redeliver, seed).go_on()
        return outcome_of(engine, run.id)
    finally:
        database.close()


class _Answering:
    def __init__(
        self,
        engine: Engine,
        run_id: str,
        handlers: Mapping[str, Handler],
        order: str | Sequence[str],
        redeliver: bool,
        seed: int,
    ) -> None:
        self._engine, self._run_id, self._handlers = engine, run_id, handlers
        self._hints = [] if isinstance(order, str) else list(order)
        self._order = order if isinstance(order, str) else "any"
        self._redeliver = redeliver
        self._random = random.Random(seed)
        self._unanswered: set[str] = set()

    def go_on(self) -> None:
        """Answer one task after the other until none is left that has an answer."""
        while outstanding := self._outstanding():
            task = self._choose(outstanding)
            handler = self._handlers[task.name]
            try:
                outcome = _answer(handler, dict(task.data or {}))
            except NoAnswer:
                self._unanswered.add(task.uuid)
                continue
            self._report(task, outcome)

    def _outstanding(self) -> list[TaskDefinition]:
        return [
            task
            for task in self._engine.tasks(self._run_id)
            if task.state == TaskState.PENDING
            and task.name in self._handlers
            and task.uuid not in self._unanswered
        ]

    def _choose(self, outstanding: list[TaskDefinition]) -> TaskDefinition:
        for hint in self._hints:
            for task in outstanding:
                if _fits(hint, task):
                    self._hints.remove(hint)
                    return task
        if self._order == "shuffle":
            return self._random.choice(outstanding)
        return outstanding[-1 if self._order == "reverse" else 0]

    def _report(self, task: TaskDefinition, outcome: TryOutcome) -> None:
        claimed = self._claim(task)
        self._engine.report(claimed, outcome)
        if self._redeliver:
            self._engine.report(claimed, Succeeded({"late": True}))
            self._engine.continue_step(claimed.step_id, {"later": True})

    def _claim(self, task: TaskDefinition) -> TaskDefinition:
        claimed = self._engine.claim_one(task.uuid, WorkerIdentity())
        assert claimed is not None, f"{task.step_path} was claimed by somebody else"
        return claimed


def _answer(handler: Handler, data: dict[str, Any]) -> TryOutcome:
    try:
        return Succeeded(dict(handler(data) or {}))
    except NoAnswer:
        raise
    except Exception as problem:
        return Failed({"type": type(problem).__name__, "message": str(problem)})


def _fits(hint: str, task: TaskDefinition) -> bool:
    name, _, condition = hint.partition(":")
    if name != task.name:
        return False
    if not condition:
        return True
    param, _, wanted = condition.partition("=")
    found = (task.data or {}).get(param)
    return wanted in (found, json.dumps(found))


def outcome_of(engine: Engine, run_id: str) -> Outcome:
    """How a run ended, or that it waits."""
    info = engine.get(run_id)
    steps = engine.steps(run_id)
    return Outcome(
        status="WAITING" if info.state == RunState.RUNNING else info.state,
        outputs=info.outputs,
        error=info.error_text,
        tasks=[(task.name, dict(task.data or {})) for task in engine.tasks(run_id)],
        steps={s.path: s.state for s in steps if s.object_type not in ObjectType.BLOCKS},
    )
