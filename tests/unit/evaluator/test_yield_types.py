"""Results that yields compute are of the types that the facet declares."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.evaluator import RunState
from flowengine.evaluator.triggers import Succeeded
from tests.builders import (
    Node,
    block,
    catching,
    event,
    facet,
    given,
    joined,
    listed,
    of,
    op,
    program,
    schema,
    step,
    to,
    workflow,
)
from tests.unit.evaluator.in_memory_run import MemoryRun

POINT = schema("Point", "x:Long y:Long")
MISFITS: dict[str, tuple[str, Any, str]] = {
    "text": ("Long", joined("a", given("n")), "expected Long, found 'a1'"),
    "number": ("String", op(given("n"), "+", 1), "expected String, found 2"),
    "fraction": ("Long", op(given("n"), "/", 2), "expected Long, found 0.5"),
    "list": ("[Long]", listed(given("n"), "b"), "item 1: expected Long, found 'b'"),
    "truth": ("Boolean", given("n"), "expected Boolean, found 1"),
    "schema": ("Point", listed(given("n")), "expected Point, found a list"),
}


def of_workflow(declared: str, value: Any) -> Node:
    body = block(yields=[to("W", out=value)])
    return program(POINT, workflow("W", "n", f"out:{declared}", body))


@pytest.mark.parametrize("name", MISFITS)
def test_a_yield_of_another_type_fails_the_workflow(name: str) -> None:
    declared, value, why = MISFITS[name]
    run = MemoryRun(of_workflow(declared, value), {"n": 1})
    error = run.view.error
    assert error is not None
    assert (error["type"], error["path"]) == ("TypeMismatch", "W")
    assert error["message"] == f"the yields of W do not fit its returns: 'out': {why}"


@pytest.mark.parametrize("value", [given("n"), None, op(given("n"), "*", 2.0)])
def test_a_yield_that_fits_completes_it(value: Any) -> None:
    assert MemoryRun(of_workflow("Long", value), {"n": 1}).view.state == RunState.COMPLETED


def test_a_facet_with_a_body_fails_at_its_own_step_and_can_be_caught() -> None:
    inner = facet("F", "n", "y:Long", block(yields=[to("F", y=joined("x", given("n")))]))
    call = step("f", "F", n=given("n"))
    used = workflow("W", "n", "out", block(call, yields=[to("W", out=of("f.y"))]))
    run = MemoryRun(program(inner, used), {"n": 1})
    assert run.view.error is not None
    assert (run.view.error["type"], run.view.error["path"]) == ("TypeMismatch", "W.f")
    caught = catching(call, yields=[to("F", y=7)])
    used = workflow("W", "n", "out", block(caught, yields=[to("W", out=of("f.y"))]))
    assert MemoryRun(program(inner, used), {"n": 1}).outputs == {"out": 7}


def test_merged_lists_of_a_loop_are_checked_as_a_whole() -> None:
    body = block(
        step("e", "E", x=given("i")),
        foreach=("i", given("is")),
        yields=[to("W", ys=listed(of("e.y")))],
    )
    document = program(event("E", "x", "y"), workflow("W", "is", "ys:[Long]", body))
    for answers, state in (([1, 2], RunState.COMPLETED), ([1, "two"], RunState.FAILED)):
        run = MemoryRun(document, {"is": [0, 1]})
        run.answer_all(lambda task, of=answers: Succeeded({"y": of[(task.data or {})["x"]]}))
        assert run.view.state == state
