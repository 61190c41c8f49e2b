"""Start the run, or enqueue the turn, that the code of a step returned."""

from __future__ import annotations

from flowengine.agents import TurnCall, agents_of
from flowengine.authoring import WorkflowCall
from flowengine.engine import Engine
from flowengine.errors import FlowengineError
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Delegated, Outcome, Succeeded
from flowengine.worker.breakers import PERMANENT
from flowengine.worker.try_errors import failed


class ChildNotStarted(FlowengineError):
    """The engine could not start the run that a facet returned; its call can be made later."""

    def __init__(self, path: str, call: WorkflowCall | TurnCall, problem: Exception) -> None:
        super().__init__(path, call, problem)
        self.path, self.call, self.problem = path, call, problem

    def __str__(self) -> str:
        kind = type(self.problem).__name__
        return f"the child run of {self.path} cannot be started: {kind}: {self.problem}"


def start_child(engine: Engine, task: TaskDefinition, call: WorkflowCall | TurnCall) -> Outcome:
    """Start the run, or enqueue the turn, that a facet returned; idempotent.

    Raises errors of the engine alone.
    """
    try:
        if isinstance(call, TurnCall):
            return Delegated(agents_of(engine).ask(task, call))
        run_id = engine.start_child(
            task,
            call.program,
            call.workflow,
            call.inputs,
            waits=call.waits,
            on_cancel=call.on_cancel,
        )
    except PERMANENT as problem:
        return failed(engine, task, problem, retry=False)
    return Delegated(run_id) if call.waits else Succeeded({"result": run_id, "run": run_id})
