"""A durable function for the simulation: its workers run its code, and make some calls in place."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from flowengine import current_step, gather, sleep
from flowengine.authoring.definitions import Definition
from flowengine.authoring.facets import EventFacet
from flowengine.authoring.functions import acall, durable_function
from flowengine.authoring.locations import location_of
from flowengine.engine import Engine
from flowengine.errors import StepFailed
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.records import ACTIVATION
from flowengine.evaluator.triggers import Failed, Outcome, Succeeded
from flowengine.program.event_options import EventOptions, RetryPolicy
from flowengine.program.function_calls import CallKind, FunctionCall
from flowengine.program.nodes import FacetKind
from flowengine.worker.activations import Activations
from flowengine.worker.batch import BatchSizing
from flowengine.worker.in_place_calls import LeaseLost

NAME = "Roam@1"
_FLAKY = RetryPolicy(attempts=3, first_wait=0.2)


def _facet(fn: Any, name: str, **options: Any) -> EventFacet[..., Any]:
    """Return a facet that no registry has: other tests of the process do not see it."""
    given = EventOptions(max_losses=10_000, **options)
    return EventFacet(Definition(FacetKind.EVENT, fn, name, (), location_of(fn), given))


def _call(x: int) -> int:
    return x + 1


def _call_flaky(x: int) -> int:
    if current_step().try_number == 1:
        raise ValueError("not yet")
    return x + 1


def _call_fail(x: int) -> int:
    raise ValueError(f"never {x}")


call, flaky = _facet(_call, "Call"), _facet(_call_flaky, "CallFlaky", retry=_FLAKY)
look, fail = _facet(_call, "CallLook", effects=False), _facet(_call_fail, "CallFail")
FACETS = [NAME, "Call", "CallFlaky", "CallLook", "CallFail"]


async def roam(x: int) -> int:
    total = x
    for _ in range(3):
        total = await acall(look, await acall(call, total))
    total += sum(await gather(*(acall(flaky, n) for n in range(3)), acall(call, 7)))
    await sleep(0.1)
    try:
        await acall(fail, total)
    except StepFailed:
        total += 100
    return total


_HANDLERS: dict[str, Any] = {
    NAME: SimpleNamespace(durable=durable_function(roam, name="Roam")),
    **{one.name: one for one in (call, flaky, look, fail)},
}


class _Lots:
    """Draws which of the first calls are made in place."""

    time_slice, timeouts = 3_600.0, None

    def __init__(self, lots: random.Random) -> None:
        self._lots, self.sizing = lots, BatchSizing(1.0)

    def served(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), ()

    def others_wait(self) -> bool:
        return True

    def leading(self, calls: Sequence[FunctionCall], served: object) -> int:
        events = itertools.takewhile(lambda one: one.kind is CallKind.EVENT, calls)
        return len(list(itertools.takewhile(lambda _: self._lots.random() < 0.5, events)))


def is_of_function(task: TaskDefinition) -> bool:
    return task.name in FACETS


def answer(engine: Engine, task: TaskDefinition, lots: random.Random | None) -> Outcome | None:
    """Return the outcome of a task of the function; None: its lease was lost. Some die in it."""
    if task.data_type == ACTIVATION:
        policy: Any = None if lots is None else _Lots(lots)
        try:
            return Activations(engine, _HANDLERS.get, policy).execute(task)
        except LeaseLost:
            return None
    x = (task.data or {})["x"]
    if task.name == "CallFail":
        return Failed({"type": "ValueError", "message": f"never {x}"})
    if task.name == "CallFlaky" and task.try_number == 1:
        return Failed({"type": "ValueError", "message": "not yet"})
    return Succeeded({"result": x + 1})
