"""When blocks: which cases run, and what is seen of the others."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.evaluator import RunState
from tests.builders import (
    Node,
    block,
    case,
    default,
    event,
    facet,
    given,
    item,
    listed,
    of,
    op,
    program,
    step,
    to,
    when,
    workflow,
)
from tests.unit.evaluator.in_memory_run import MemoryRun

E = event("E", "x", "y")


def run_of(*blocks: Node, beside: tuple[Node, ...] = (), **inputs: Any) -> MemoryRun:
    document = program(E, *beside, workflow("W", list(inputs), "out", *blocks))
    return MemoryRun(document, inputs)


def over(limit: int) -> Node:
    return op(given("n"), ">", limit)


def out(value: Any) -> list[Node]:
    return [to("W", out=value)]


def cases_of(run: MemoryRun) -> dict[str, str]:
    """State of each case by the end of its path."""
    rows = [run._step(key) for key in run.rows]
    return {
        row.path.rpartition("[")[2].rstrip("]"): row.state.rpartition(".")[2]
        for row in rows
        if row.object_type == "WhenCase"
    }


def test_every_case_that_matches_runs_and_yields_merge_in_program_order() -> None:
    run = run_of(
        when(
            case(over(1), step("a", "E", x=1), yields=out(listed(of("a.y")))),
            case(over(9), step("b", "E", x=2)),
            case(over(2), step("c", "E", x=3), yields=out(listed(of("c.y")))),
            default(step("d", "E", x=4)),
        ),
        n=5,
    )
    assert [task.step_path for task in run.outstanding()] == ["W[case-0].a", "W[case-2].c"]
    run.succeed("W[case-2].c", y="c")
    run.succeed("W[case-0].a", y="a")
    assert run.outputs == {"out": ["a", "c"]}


def test_a_case_that_is_not_taken_is_seen_as_skipped_and_fails_nothing() -> None:
    run = run_of(when(case(over(1)), case(over(9)), default()), n=5)
    assert run.view.state == RunState.COMPLETED
    assert cases_of(run) == {"case-0": "Complete", "case-1": "Skipped", "default": "Skipped"}


def test_the_default_runs_only_when_nothing_matches() -> None:
    run = run_of(when(default(yields=out("default")), case(over(9), yields=out("nine"))), n=5)
    assert run.outputs == {"out": "default"}


def test_only_the_first_match_runs_and_later_conditions_are_not_evaluated() -> None:
    broken = op(op(1, "/", 0), "==", 1)
    run = run_of(
        when(
            case(over(9), yields=out(9)),
            case(over(3), yields=out(3)),
            case(over(2), yields=out(2)),
            case(broken, yields=out(0)),
            first=True,
        ),
        n=5,
    )
    assert run.outputs == {"out": 3}
    assert list(cases_of(run).values()).count("Complete") == 1


def test_no_match_and_no_default_fails_the_run() -> None:
    run = run_of(when(case(over(9))), n=5)
    assert run.view.state == RunState.FAILED
    assert run.view.error == {
        "type": "NoCaseMatches",
        "message": "no case matches, and there is no default",
        "path": "W",
    }


@pytest.mark.parametrize("first", [False, True])
def test_an_error_in_a_condition_fails_the_block_and_the_default_does_not_run(first: bool) -> None:
    run = run_of(
        when(case(op(item(given("xs"), 3), "==", 1)), default(step("d", "E", x=1)), first=first),
        xs=[1],
    )
    assert run.view.state == RunState.FAILED
    assert run.view.error is not None
    assert run.view.error["message"].startswith("condition of case 0: index 3 is outside")
    assert not run.tasks


def test_conditions_wait_for_the_steps_they_name() -> None:
    run = run_of(
        block(step("a", "E", x=1), step("b", "E", x=2)),
        when(
            case(op(of("a.y"), "==", of("b.y")), yields=out("same")),
            default(yields=out("different")),
        ),
    )
    run.succeed("W.block-0.b", y=1)
    assert not cases_of(run)
    run.succeed("W.block-0.a", y=1)
    assert run.outputs == {"out": "same"}


def test_a_condition_on_a_failed_step_skips_the_block() -> None:
    run = run_of(
        block(step("a", "E", x=1)),
        when(case(op(of("a.y"), "==", 1), step("b", "E", x=2)), default(step("c", "E", x=3))),
    )
    run.fail("W.block-0.a", "dry")
    assert run.view.state == RunState.FAILED
    assert not cases_of(run)
    assert len(run.tasks) == 1


def test_a_case_may_wait_for_a_step_of_an_earlier_block() -> None:
    run = run_of(
        block(step("a", "E", x=1)),
        when(
            case(over(1), step("b", "E", x=of("a.y")), yields=out(of("b.y"))),
            case(over(9), step("c", "E", x=of("a.y"))),
        ),
        n=5,
    )
    assert run.states()["W.when-1[case-0].b"] == "Created"
    run.succeed("W.block-0.a", y=7)
    assert run.task("W.when-1[case-0].b").data == {"x": 7}
    run.succeed("W.when-1[case-0].b", y=8)
    assert run.outputs == {"out": 8}


def test_a_case_may_yield_results_of_an_earlier_block() -> None:
    run = run_of(block(step("a", "E", x=1)), when(case(over(1), yields=out(of("a.y")))), n=5)
    assert run.view.state == RunState.RUNNING
    run.succeed("W.block-0.a", y=7)
    assert run.outputs == {"out": 7}


def test_a_body_with_a_when_decides_on_the_result_of_its_own_step() -> None:
    run = run_of(
        block(
            step(
                "s",
                "E",
                when(
                    case(op(of("s.y"), ">", 1), yields=[to("E", y=op(of("s.y"), "*", 10))]),
                    default(yields=out("small")),
                ),
                x=1,
            ),
            yields=out(of("s.y")),
        )
    )
    run.succeed("W.s", y=3)
    assert run.outputs == {"out": 30}


def test_a_when_inside_an_item_decides_for_each_item() -> None:
    each = block(
        step(
            "s",
            "E",
            when(case(op(of("s.y"), ">", 1), yields=[to("W", out=listed(of("s.y")))]), default()),
            x=given("i"),
        ),
        foreach=("i", given("xs")),
    )
    run = run_of(each, xs=[0, 1, 2])
    for index in (2, 0, 1):
        run.succeed(f"W[{index}].s", y=index * 2)
    assert run.outputs == {"out": [2, 4]}


def test_a_failed_step_in_one_case_leaves_the_other_cases_alone() -> None:
    run = run_of(when(case(over(1), step("a", "E", x=1)), case(over(2), step("b", "E", x=2))), n=5)
    run.fail("W[case-0].a", "dry")
    assert run.view.state == RunState.RUNNING
    run.succeed("W[case-1].b", y=1)
    assert run.view.state == RunState.FAILED


COUNTDOWN = facet(
    "Down",
    "n",
    "total",
    when(
        case(
            op(given("n"), ">", 0),
            step("e", "E", x=given("n")),
            step("d", "Down", n=op(given("n"), "-", 1)),
            yields=[to("Down", total=op(of("e.y"), "+", of("d.total")))],
        ),
        default(yields=[to("Down", total=0)]),
    ),
)


def test_a_facet_that_calls_itself_under_a_condition_ends() -> None:
    run = run_of(
        block(step("d", "Down", n=given("n")), yields=out(of("d.total"))), beside=(COUNTDOWN,), n=4
    )
    while outstanding := run.outstanding():
        run.succeed(outstanding[-1].step_path, y=2)
    assert run.outputs == {"out": 8}


def test_a_facet_that_calls_itself_without_end_fails_with_its_path() -> None:
    endless = facet("F", "n", "", when(case(True, step("f", "F", n=given("n")))))
    run = run_of(block(step("f", "F", n=1)), beside=(endless,))
    assert run.view.state == RunState.FAILED
    assert run.view.error is not None
    assert run.view.error["type"] == "NestedTooDeep"


@pytest.mark.parametrize("depth", [3, 60, 150])
def test_facets_nested_at_any_depth_end_in_the_same_few_round_trips(depth: int) -> None:
    run = run_of(
        block(step("d", "Down", n=given("n")), yields=out(of("d.total"))),
        beside=(COUNTDOWN,),
        n=depth,
    )
    # From the outermost to the innermost: the last answer lets all levels end.
    for task in run.outstanding():
        run.succeed(task.step_path, y=1)
    assert run.outputs == {"out": depth}
    assert run.trips <= 6


@pytest.mark.parametrize("depth", [10, 40, 120])
def test_a_recursion_over_many_reports_ends_in_a_few_round_trips(depth: int) -> None:
    # The level that ends, and lets all others end, comes to be with the last answer: nothing
    # above it could be foreseen from what happened.
    descent = facet(
        "Down",
        "n",
        "total",
        when(
            case(
                op(given("n"), ">", 0),
                step("e", "E", x=given("n")),
                step("d", "Down", n=of("e.y")),
                yields=[to("Down", total=op(of("e.y"), "+", of("d.total")))],
            ),
            default(yields=[to("Down", total=0)]),
        ),
    )
    run = run_of(
        block(step("d", "Down", n=given("n")), yields=out(of("d.total"))),
        beside=(descent,),
        n=depth,
    )
    while outstanding := run.outstanding():
        (task,) = outstanding
        assert task.data is not None
        run.succeed(task.step_path, y=task.data["x"] - 1)
    assert run.outputs == {"out": sum(range(depth))}
    assert run.trips <= 12
