"""Run a program against handlers that report in a chosen order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowengine.engine import Engine
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.evaluator.triggers import Outcome as TryOutcome
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema
from flowengine.store.claims import WorkerIdentity

Handler = Callable[[dict[str, Any]], Mapping[str, Any] | None]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program."""

    status: str  #: COMPLETED, FAILED, or WAITING: tasks without a report are left
    outputs: dict[str, Any] | None
    error: str | None  #: path, type and message of the failure
    tasks: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    steps: dict[str, str] = field(default_factory=dict)  #: path → state


class NoAnswer(Exception):
    """Raised by a handler that leaves its task without a report."""


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
    """Run a program to its end, or until no pending task has a handler.

    `handlers` maps a qualified facet name to a callable that takes the parameters and returns
    the results; an exception is a failure. `order` is "any" (oldest task first), "reverse"
    (newest first), "shuffle" or a list of hints ``ns.Facet:param=value``: the first hint with
    a pending task selects it and is removed; without a match the oldest task is next.
    `redeliver` reports every task twice, the second time with other content.
    """
    database = Database(store_url)
    try:
        ensure_schema(database, upgrade=True)
        engine = Engine(database, settings=settings)
        run = engine.start(program, workflow, inputs)
        order, hints = (order, []) if isinstance(order, str) else ("any", list(order))
        draw = random.Random(seed)
        _ProgramRunner(engine, run.id, handlers, order, hints, redeliver, draw).run()
        return outcome_of(engine, run.id)
    finally:
        database.close()


@dataclass
class _ProgramRunner:
    engine: Engine
    run_id: str
    handlers: Mapping[str, Handler]
    order: str
    hints: list[str]
    redeliver: bool
    random: random.Random
    skipped: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Report one task after the other until no pending task has a handler."""
        while pending := self._pending():
            task = self._choose(pending)
            try:
                outcome = _outcome(self.handlers[task.name], dict(task.data or {}))
            except NoAnswer:
                self.skipped.add(task.uuid)
                continue
            claimed = self.engine.claim_one(task.uuid, task.task_list_name, WorkerIdentity())
            assert claimed is not None, f"{task.step_path} was claimed by another worker"
            self.engine.report(claimed, outcome)
            if self.redeliver:
                self.engine.report(claimed, Succeeded({"late": True}))
                self.engine.continue_step(claimed.step_id, {"later": True})

    def _pending(self) -> list[TaskDefinition]:
        return [
            task
            for task in self.engine.tasks(self.run_id)
            if task.state == TaskState.PENDING
            and task.name in self.handlers
            and task.uuid not in self.skipped
        ]

    def _choose(self, pending: list[TaskDefinition]) -> TaskDefinition:
        for hint in self.hints:
            for task in pending:
                if _matches(hint, task):
                    self.hints.remove(hint)
                    return task
        if self.order == "shuffle":
            return self.random.choice(pending)
        return pending[-1 if self.order == "reverse" else 0]


def _outcome(handler: Handler, data: dict[str, Any]) -> TryOutcome:
    try:
        return Succeeded(dict(handler(data) or {}))
    except NoAnswer:
        raise
    except Exception as problem:
        return Failed({"type": type(problem).__name__, "message": str(problem)})


def _matches(hint: str, task: TaskDefinition) -> bool:
    name, _, condition = hint.partition(":")
    if name != task.name:
        return False
    if not condition:
        return True
    param, _, wanted = condition.partition("=")
    value = (task.data or {}).get(param)
    return wanted in (value, json.dumps(value))


def outcome_of(engine: Engine, run_id: str) -> Outcome:
    """Return the outcome of a run."""
    info = engine.get(run_id)
    steps = engine.steps(run_id)
    return Outcome(
        status=info.state if info.is_final else "WAITING",
        outputs=info.outputs,
        error=info.error_text,
        tasks=[(task.name, dict(task.data or {})) for task in engine.tasks(run_id)],
        steps={s.path: s.state for s in steps if s.object_type not in ObjectType.BLOCKS},
    )
