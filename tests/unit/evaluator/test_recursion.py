"""Recursion that does not end is stopped by a limit, at bounded cost."""

from __future__ import annotations

import pytest

from flowengine.evaluator import RunState
from flowengine.evaluator.triggers import Succeeded
from flowengine.program import link_program, parse_program
from tests.builders import (
    Node,
    block,
    case,
    catching,
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

LIMIT = 50
E = event("E", "x", "y")
TWICE = when(case(True, step("a", "F", n=given("n")), step("b", "F", n=given("n"))))
IN_A_LOOP = block(step("f", "F", n=given("i")), foreach=("i", [1, 2]))
AFTER_AN_EVENT = when(
    case(
        True,
        step("e", "E", x=given("n")),
        step("a", "F", n=of("e.y")),
        step("b", "F", n=of("e.y")),
    )
)
THROUGH_ANOTHER = when(case(True, step("a", "G", n=given("n")), step("b", "G", n=given("n"))))


def run_of(*declarations: Node) -> MemoryRun:
    calls = block(step("f", "F", n=1))
    run = MemoryRun(
        program(E, *declarations, workflow("W", "", "", calls)), max_recursive_calls=LIMIT
    )
    run.settle()
    run.answer_all(lambda task: Succeeded({"y": 1}))
    return run


@pytest.mark.parametrize(
    "declarations",
    [
        [facet("F", "n", "", TWICE)],
        [facet("F", "n", "", IN_A_LOOP)],
        [facet("F", "n", "", AFTER_AN_EVENT)],
        [facet("F", "n", "", THROUGH_ANOTHER), facet("G", "n", "", block(step("f", "F", n=1)))],
        [catching(facet("F", "n", "", TWICE), step("again", "F", n=1))],
        [workflow("F", "n", "", TWICE)],
    ],
    ids=["twice", "in a loop", "after an event", "through another", "in a catch", "a workflow"],
)
def test_branching_recursion_without_end_fails_at_the_limit(declarations: list[Node]) -> None:
    run = run_of(*declarations)
    assert run.view.state == RunState.FAILED
    assert run.view.error is not None
    assert run.view.error["type"] == "TooManyRecursiveCalls"
    for named in ("'F'" if len(declarations) == 1 else "'", "50", "max_recursive_calls"):
        assert named in run.view.error["message"]
    assert len(run.rows) < 10 * LIMIT, "the cost is bounded by the limit"


def test_recursion_that_ends_below_the_limit_completes() -> None:
    halves = facet(
        "F",
        "n",
        "total",
        when(
            case(
                op(given("n"), ">", 1),
                step("a", "F", n=op(given("n"), "/", 2)),
                step("b", "F", n=op(given("n"), "/", 2)),
                yields=[to("F", total=op(of("a.total"), "+", of("b.total")))],
            ),
            default(yields=[to("F", total=1)]),
        ),
    )
    calls = block(step("f", "F", n=16), yields=[to("W", total=of("f.total"))])
    run = MemoryRun(program(halves, workflow("W", "", "total", calls)), max_recursive_calls=LIMIT)
    assert run.outputs == {"total": 16}


def test_calls_of_facets_that_do_not_call_themselves_are_not_counted() -> None:
    plain = facet("F", "n", "", block(step("e", "E", x=given("n"))))
    wide = block(step("f", "F", n=given("i")), foreach=("i", list(range(2 * LIMIT))))
    run = MemoryRun(program(E, plain, workflow("W", "", "", wide)), max_recursive_calls=LIMIT)
    run.settle()
    run.answer_all(lambda task: Succeeded({"y": 1}))
    assert run.view.state == RunState.COMPLETED


def test_the_linker_marks_the_facets_that_can_call_themselves() -> None:
    plan = link_program(
        parse_program(
            program(
                E,
                facet("F", "n", "", THROUGH_ANOTHER),
                facet("G", "n", "", block(step("f", "F", n=1))),
                facet("H", "", "", block(step("f", "F", n=1))),
            )
        )
    )
    recursive = {facet.name for facet in plan.facets.values() if facet.is_recursive}
    assert recursive == {"F", "G"}
    assert plan.has_recursion
