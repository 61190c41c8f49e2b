"""Steps that come after others without using their results."""

from __future__ import annotations

import pytest

from flowengine.errors import InvalidProgram
from flowengine.evaluator import RunState
from tests.builders import Node, after, block, event, given, of, program, step, to, workflow
from tests.unit.evaluator.in_memory_run import MemoryRun

ENDED = {"step": "a", "on": "ended"}


def run_of(*blocks: Node) -> MemoryRun:
    return MemoryRun(program(event("E", "x", "y"), workflow("W", "", "out", *blocks)))


def waiting(run: MemoryRun) -> list[str]:
    return [task.step_path.removeprefix("W.") for task in run.outstanding()]


def test_a_step_begins_when_the_steps_before_it_have_completed() -> None:
    steps = [step(name, "E", x=1) for name in "abc"]
    run = run_of(block(after(steps[0], "b", "c"), steps[1], after(steps[2], "b")))
    assert waiting(run) == ["b"]
    run.succeed("W.b", y=1)
    assert waiting(run) == ["c"]
    run.succeed("W.c", y=1)
    assert waiting(run) == ["a"]
    run.succeed("W.a", y=1)
    assert run.view.state == RunState.COMPLETED


def test_a_step_is_skipped_when_one_before_it_failed() -> None:
    run = run_of(block(step("a", "E", x=1), after(step("b", "E", x=1), "a")))
    run.fail("W.a")
    assert run.states() == {"W": "Error", "W.a": "Error", "W.b": "Skipped"}


@pytest.mark.parametrize("others", [[], ["c"]], ids=["the only one", "one of several"])
def test_the_end_of_a_step_may_be_enough(others: list[str]) -> None:
    steps = [step(name, "E", x=1) for name in ("a", *others)]
    run = run_of(block(*steps, after(step("b", "E", x=1), ENDED, *others)))
    for name in others:
        run.succeed(f"W.{name}", y=1)
    run.fail("W.a")
    assert waiting(run) == ["b"]
    run.succeed("W.b", y=1)
    assert run.view.state == RunState.FAILED, "the step that failed is not caught"


def test_a_step_whose_result_is_used_too_is_waited_for_once() -> None:
    run = run_of(block(step("a", "E", x=1), after(step("b", "E", x=of("a.y")), "a", ENDED)))
    run.succeed("W.a", y=7)
    assert run.task("W.b").data == {"x": 7}


@pytest.mark.parametrize("order", ["a", ENDED], ids=["completed", "ended"])
def test_items_of_a_list_come_after_a_step_outside(order: str | Node) -> None:
    item = after(step("b", "E", x=given("i")), order)
    run = run_of(
        block(step("a", "E", x=1)),
        block(item, yields=[to("W", out=of("b.y"))], foreach=("i", [1, 2])),
    )
    assert waiting(run) == ["block-0.a"]
    run.succeed("W.block-0.a", y=1)
    assert len(waiting(run)) == 2
    run.answer_all(lambda task: None)


def test_items_after_the_end_of_a_failed_step_run() -> None:
    item = after(step("b", "E", x=given("i")), ENDED)
    run = run_of(block(step("a", "E", x=1)), block(item, foreach=("i", [1, 2])))
    run.fail("W.block-0.a")
    assert len(waiting(run)) == 2


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([after(step("a", "E", x=1), "b")], "after: unknown step 'b'"),
        ([after(step("a", "E", x=1), {"step": "a", "on": "x"})], "'completed' or 'ended', not 'x'"),
        (
            [after(step("a", "E", x=1), "b"), after(step("b", "E", x=1), ENDED)],
            "a → b → a wait for each other in a cycle",
        ),
        (
            [step("a", "E", block(after(step("b", "E", x=1), "a")), x=1)],
            "after: it is part of the step 'a', which ends after it",
        ),
    ],
)
def test_an_order_that_cannot_be_kept_is_refused(steps: list[Node], problem: str) -> None:
    with pytest.raises(InvalidProgram, match=problem):
        run_of(block(*steps))
