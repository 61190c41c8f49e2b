"""Check the results of callbacks: as a worker's are, and that no declared result is missing.

An answer from outside may leave results out: somebody else may give them later. A callback gives
all of them or has an error, which its author sees here and not where the value is missed.
"""

from __future__ import annotations

from collections.abc import Callable

from flowengine.engine import Engine
from flowengine.engine.result_validation import refused_result
from flowengine.errors import DoesNotFit
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Outcome, Succeeded
from flowengine.worker.handlers import Handler


class CallbackResults:
    def __init__(self, engine: Engine, find: Callable[[str], Handler | None]) -> None:
        self._engine, self._find = engine, find

    def storable(self, task: TaskDefinition, outcome: Outcome) -> Outcome:
        checked = self._engine.storable(task.name, task.flow_id, outcome)
        handler = self._find(task.name)
        if not isinstance(outcome, Succeeded) or handler is None or handler.validates:
            return checked
        given = checked.result if isinstance(checked, Succeeded) else outcome.result
        if given and not isinstance(checked, Succeeded):
            return checked  # refused for a better reason
        declared = self._engine.reporter.declared(task.name, task.flow_id)
        names = [field.name for field in declared.returns] if declared else []
        if missing := [name for name in names if name not in given]:
            shown = f"{', '.join(map(repr, missing))} {'is' if len(missing) == 1 else 'are'}"
            returned = ", ".join(map(repr, outcome.result)) or "nothing"
            problem = f"{shown} missing; it returns {', '.join(names)}, the callback {returned}"
            return refused_result(DoesNotFit(task.name, [problem]))
        return checked
