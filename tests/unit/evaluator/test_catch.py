"""Catches and always blocks: what a step does about its own failure."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.evaluator import RunState
from flowengine.evaluator.triggers import Failed
from tests.builders import (
    Node,
    always,
    block,
    case,
    catching,
    catching_when,
    default,
    event,
    facet,
    given,
    joined,
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


def caught_run(flow: Node, **inputs: Any) -> MemoryRun:
    return MemoryRun(program(E, flow), inputs)


def out(value: Any) -> list[Node]:
    return [to("W", out=value)]


S = step("s", "E", x=1)


# --- a statement's catch ---


def test_a_caught_failure_gives_the_step_its_results_and_dependents_go_on() -> None:
    run = run_of(
        block(
            catching(S, yields=[to("E", y=joined("was: ", of("s.error")))]),
            step("t", "E", x=of("s.y")),
            yields=out(of("t.y")),
        )
    )
    run.fail("W.s", "static")
    assert run.task("W.t").data == {"x": "was: static"}
    run.succeed("W.t", y=1)
    assert run.outputs == {"out": 1}
    assert run.states()["W.s"] == "Complete"


def test_a_catch_reads_text_type_and_path_of_the_error_in_both_ways() -> None:
    names = ("error", "error_type", "error_path")
    read = listed(*(of(f"s.{name}") for name in names), *(given(name) for name in names))
    run = run_of(block(catching(S, yields=out(read))))
    run.fail("W.s", "static")
    assert run.outputs == {"out": ["static", "Oops", "W.s"] * 2}


@pytest.mark.parametrize(
    ("error", "types"),
    [
        ({"type": "Refused", "bases": ["BankError"]}, ["Refused", "BankError"]),
        ({"type": "Refused"}, ["Refused"]),
    ],
    ids=["with bases", "stored by an older version"],
)
def test_a_catch_reads_the_types_of_the_error(error: dict[str, Any], types: list[str]) -> None:
    in_both_ways = listed(of("s.error_types"), given("error_types"))
    run = run_of(block(catching(S, yields=out(in_both_ways))))
    run.report(run.task("W.s"), Failed({**error, "message": "static"}))
    assert run.outputs == {"out": [types, types]}


def test_a_case_of_a_catch_matches_a_base_class_of_the_error() -> None:
    handled = catching_when(
        S,
        case(op(of("s.error_types"), "contains", "KeyError"), yields=out("key")),
        case(op(of("s.error_types"), "contains", "BankError"), yields=out("bank")),
    )
    run = run_of(block(handled))
    error = {"type": "Refused", "bases": ["BankError", "Exception"], "message": "no"}
    run.report(run.task("W.s"), Failed(error))
    assert run.outputs == {"out": "bank"}


def test_the_error_is_no_attribute_of_the_step_once_it_is_caught() -> None:
    run = run_of(block(catching(S), yields=out(of("s"))))
    run.fail("W.s", "static")
    assert run.outputs == {"out": {"x": 1}}


def test_an_event_may_run_inside_a_catch() -> None:
    run = run_of(
        block(
            catching(S, step("again", "E", x=given("error")), yields=[to("E", y=of("again.y"))]),
            yields=out(of("s.y")),
        )
    )
    run.fail("W.s", "static")
    run.succeed("W.s[catch].again", y=5)
    assert run.outputs == {"out": 5}


def test_a_step_that_did_not_fail_does_not_run_its_catch() -> None:
    run = run_of(block(catching(S, step("again", "E", x=1)), yields=out(of("s.y"))))
    run.succeed("W.s", y=5)
    assert run.outputs == {"out": 5}
    assert len(run.tasks) == 1


def test_arguments_that_cannot_be_evaluated_are_caught_too() -> None:
    broken = step("s", "E", x=op(1, "/", 0))
    run = run_of(block(catching(broken, yields=[to("E", y=0)]), yields=out(of("s.y"))))
    assert run.outputs == {"out": 0}
    assert not run.tasks


def test_a_failed_body_is_caught_and_yields_of_its_other_blocks_stay() -> None:
    run = run_of(
        block(
            catching(
                step(
                    "s",
                    "F",
                    block(step("a", "E", x=1), yields=[to("F", a=of("a.y"))]),
                    block(step("b", "E", x=2), yields=[to("F", b=of("b.y"))]),
                    x=1,
                ),
                yields=[to("F", c=of("s.y"))],
            ),
            yields=out(of("s")),
        ),
        beside=(event("F", "x", "y a b c"),),
    )
    run.succeed("W.s", y=1)
    run.fail("W.s.block-1.b", "broken")
    assert run.view.state == RunState.RUNNING, "the catch waits for the other block"
    run.succeed("W.s.block-0.a", y=2)
    assert run.outputs == {"out": {"x": 1, "y": 1, "a": 2, "c": 1}}


def test_a_catch_that_fails_fails_the_step_with_both_errors() -> None:
    run = run_of(block(catching(S, step("again", "E", x=1))))
    run.fail("W.s", "first")
    run.fail("W.s[catch].again", "second")
    assert run.view.error == {
        "type": "Oops",
        "message": "second (while handling W.s: Oops: first)",
        "path": "W.s[catch].again",
        "cause": {"type": "Oops", "message": "first", "path": "W.s"},
    }


def test_a_skipped_step_does_not_run_its_catch() -> None:
    run = run_of(block(S, catching(step("t", "E", x=of("s.y")), step("again", "E", x=1))))
    run.fail("W.s")
    assert run.states() == {"W": "Error", "W.s": "Error", "W.t": "Skipped"}


def test_a_catch_of_cases_chooses_by_the_error() -> None:
    def caught(message: str) -> MemoryRun:
        run = run_of(
            block(
                catching_when(
                    S,
                    case(op(of("s.error"), "contains", "quota"), yields=out("full")),
                    default(yields=out("other")),
                )
            )
        )
        run.fail("W.s", message)
        return run

    assert caught("quota exceeded").outputs == {"out": "full"}
    assert caught("no route").outputs == {"out": "other"}


def test_a_catch_without_a_case_for_the_error_leaves_it_as_it_was() -> None:
    run = run_of(block(catching_when(S, case(op(of("s.error"), "==", "x"), yields=out(1)))))
    run.fail("W.s", "y")
    assert run.view.error == {"type": "Oops", "message": "y", "path": "W.s"}


def test_an_error_in_the_condition_of_a_catch_fails_the_step_with_both_errors() -> None:
    run = run_of(block(catching_when(S, case(op(of("s.error"), ">", 1)), default(yields=out(1)))))
    run.fail("W.s", "first")
    assert run.view.error is not None
    assert run.view.error["cause"]["message"] == "first"
    assert "condition of case 0" in run.view.error["message"]


def test_a_catch_may_read_other_steps_and_waits_for_them() -> None:
    run = run_of(
        block(
            catching(S, yields=[to("E", y=of("t.y"))]), step("t", "E", x=2), yields=out(of("s.y"))
        )
    )
    run.fail("W.s")
    assert run.view.state == RunState.RUNNING
    run.succeed("W.t", y=3)
    assert run.outputs == {"out": 3}


def test_a_catch_that_needs_a_failed_step_leaves_the_error_as_it_was() -> None:
    run = run_of(block(catching(S, step("again", "E", x=of("t.y"))), step("t", "E", x=2)))
    run.fail("W.s", "first")
    run.fail("W.t", "second")
    assert run.step("W.s").error == {"type": "Oops", "message": "first", "path": "W.s"}


# --- a declaration's catch ---


def test_a_workflows_catch_starts_when_all_its_blocks_have_ended() -> None:
    flow = workflow(
        "W", "", "out", block(S, yields=out([1])), block(step("t", "E", x=2), yields=out([2]))
    )
    run = caught_run(catching(flow, yields=out(listed(given("error")))))
    run.fail("W.block-0.s", "dry")
    assert run.view.state == RunState.RUNNING
    run.succeed("W.block-1.t", y=1)
    assert run.outputs == {"out": [2, "dry"]}, "what completed blocks yielded stays"


def test_a_catch_sees_the_parameters_of_its_workflow() -> None:
    flow = catching(workflow("W", "n", "out", block(S)), yields=out(given("n")))
    run = caught_run(flow, n=7)
    run.fail("W.s")
    assert run.outputs == {"out": 7}


def test_the_facets_catch_comes_before_that_of_the_statement() -> None:
    inner = catching(facet("F", "", "v", block(S)), step("a", "E", x=2), yields=[to("F", v=1)])
    run = run_of(
        block(catching(step("f", "F"), yields=[to("F", v=given("error"))]), yields=out(of("f.v"))),
        beside=(inner,),
    )
    run.fail("W.f.s", "first")
    run.fail("W.f[catch].a", "second")
    assert run.outputs == {"out": "second (while handling W.f.s: Oops: first)"}


def test_a_caught_facet_is_for_its_caller_a_step_like_any_other() -> None:
    inner = catching(facet("F", "", "v", block(S)), yields=[to("F", v=1)])
    run = run_of(block(step("f", "F"), yields=out(of("f.v"))), beside=(inner,))
    run.fail("W.f.s")
    assert run.outputs == {"out": 1}


# --- always ---


def test_an_always_block_runs_after_success_and_changes_nothing() -> None:
    run = run_of(
        block(always(S, step("free", "E", x=of("s.error"))), yields=out(of("s.y"))),
    )
    run.succeed("W.s", y=5)
    assert run.task("W.s[always].free").data == {"x": None}
    run.succeed("W.s[always].free", y=9)
    assert run.outputs == {"out": 5}


def test_an_always_block_runs_after_failure_and_the_failure_stays() -> None:
    run = run_of(block(always(S, step("free", "E", x=of("s.error"))), yields=out(of("s.y"))))
    run.fail("W.s", "dry")
    assert run.task("W.s[always].free").data == {"x": "dry"}
    run.succeed("W.s[always].free", y=9)
    assert run.view.error == {"type": "Oops", "message": "dry", "path": "W.s"}


def test_an_always_block_runs_after_the_catch() -> None:
    caught = catching(S, step("again", "E", x=1), yields=[to("E", y=2)])
    run = run_of(block(always(caught, step("free", "E", x=1)), yields=out(of("s.y"))))
    run.fail("W.s")
    assert [task.step_path for task in run.outstanding()] == ["W.s[catch].again"]
    run.succeed("W.s[catch].again", y=0)
    assert run.view.state == RunState.RUNNING
    run.succeed("W.s[always].free", y=0)
    assert run.outputs == {"out": 2}


def test_an_always_block_that_fails_fails_the_step_and_keeps_the_earlier_error() -> None:
    run = run_of(block(always(S, step("free", "E", x=1))))
    run.fail("W.s", "first")
    run.fail("W.s[always].free", "second")
    assert run.view.error is not None
    assert run.view.error["message"] == "second (while handling W.s: Oops: first)"
    assert run.view.error["cause"]["message"] == "first"


def test_an_always_block_that_fails_fails_a_step_that_had_succeeded() -> None:
    run = run_of(block(always(S, step("free", "E", x=1)), step("t", "E", x=of("s.y"))))
    run.succeed("W.s", y=1)
    run.fail("W.s[always].free", "stuck")
    assert run.states()["W.s"] == "Error"
    assert run.states()["W.t"] == "Skipped"


def test_a_step_that_was_skipped_runs_nothing_at_its_end() -> None:
    run = run_of(block(S, always(step("t", "E", x=of("s.y")), step("free", "E", x=1))))
    run.fail("W.s")
    assert run.view.state == RunState.FAILED
    assert len(run.tasks) == 1


def test_a_step_whose_body_was_skipped_still_runs_its_always_block() -> None:
    body = block(step("in", "E", x=of("t.y")))
    held = always(step("s", "E", body, x=1), step("free", "E", x=1))
    run = run_of(block(held, step("t", "E", x=2)))
    run.succeed("W.s", y=1)
    run.fail("W.t")
    run.succeed("W.s[always].free", y=1)
    assert run.states()["W.s"] == "Skipped"


def test_an_always_block_may_choose_by_the_outcome() -> None:
    held = S | {"always": when(case(op(of("s.error"), "==", None)), default(step("f", "E", x=1)))}
    fine, broken = run_of(block(held)), run_of(block(held))
    fine.succeed("W.s", y=1)
    assert fine.view.state == RunState.COMPLETED
    broken.fail("W.s")
    assert [task.step_path for task in broken.outstanding()] == ["W.s[always][default].f"]
