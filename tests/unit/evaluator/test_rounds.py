"""A loop by recursion: each round costs the evaluator as much as the first one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pytest

from flowengine.evaluator import IterationChanges, RunState, Snapshot
from flowengine.evaluator.records import row_key
from flowengine.evaluator.triggers import Succeeded, Trigger
from flowengine.evaluator.working_set import WorkingSet
from tests.builders import (
    Node,
    block,
    case,
    default,
    event,
    facet,
    given,
    of,
    op,
    program,
    step,
    to,
    when,
    workflow,
)
from tests.unit.evaluator.in_memory_run import MemoryRun

SIZES = (10, 100, 300)
WORK = step("work", "E", x=given("n"))


def loop(next_n: Any) -> Node:
    """A workflow of n levels, each with an event; `next_n` is what is left for the next level."""
    deeper = case(
        op(given("n"), ">", 1),
        WORK,
        step("next", "Loop", n=next_n),
        yields=[to("Loop", n=op(of("next.n"), "+", op(of("work.y"), "-", given("n"))))],
    )
    last = default(WORK, yields=[to("Loop", n=of("work.y"))])
    body = block(step("loop", "Loop", n=given("n")), yields=[to("W", n=of("loop.n"))])
    facets = (event("E", "x", "y"), facet("Loop", "n", "n", when(deeper, last)))
    return program(*facets, workflow("W", "n", "n", body))


LOOPS = {
    "one after the other": loop(op(of("work.y"), "-", 2)),
    "all at once": loop(op(given("n"), "-", 1)),
}


@dataclass
class Work:
    """The work of the evaluator for each level of a run."""

    keys: float = 0  #: computed
    rows: float = 0  #: looked at
    loaded: float = 0
    trips: float = 0  #: to the store


class MeasuredRun(MemoryRun):
    """A run whose invariants are not checked: that would cost more with each row."""

    def __init__(self, *given: Any, **options: Any) -> None:
        self.all_trips = self.loaded = 0
        super().__init__(*given, **options)

    def consume_inbox(self, *triggers: Trigger) -> IterationChanges:
        changes = super().consume_inbox(*triggers)
        self.all_trips += self.trips
        return changes

    def _find(self, key: str) -> Any:
        self.loaded += 1
        return super()._find(key)

    def _check_untouched(self, snapshot: Snapshot) -> None: ...

    def _check_laws(self, changes: IterationChanges) -> None: ...


def measured(document: Node, size: int, patch: pytest.MonkeyPatch, *, forgetful: bool) -> Work:
    looks, look = 0, WorkingSet.look

    def counted(work: WorkingSet, key: str) -> Any:
        nonlocal looks
        looks += 1
        return look(work, key)

    before = row_key.cache_info()
    with patch.context() as counting:
        counting.setattr(WorkingSet, "look", counted)
        run = MeasuredRun(document, {"n": size}, forgetful=forgetful)
        while open_tasks := run.outstanding():
            task = open_tasks[0]
            run.report(task, Succeeded({"y": task.data["x"] + 1 if task.data else 0}))
    after = row_key.cache_info()
    assert run.view.state == RunState.COMPLETED
    keys = after.hits + after.misses - before.hits - before.misses
    return Work(keys / size, looks / size, run.loaded / size, run.all_trips / size)


@pytest.mark.parametrize("forgetful", [False, True], ids=["cached rows", "rows read again"])
@pytest.mark.parametrize("shape", LOOPS)
def test_the_evaluator_does_as_much_for_each_level_of_a_recursion(
    shape: str, forgetful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, *more = [
        asdict(measured(LOOPS[shape], size, monkeypatch, forgetful=forgetful)) for size in SIZES
    ]
    for many in more:
        for name, count in few.items():
            assert many[name] <= 1.1 * count, f"{name}: {few}, {many}"
