"""Cancellation, hold and release, as the evaluator decides them."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, reject, settings
from hypothesis import strategies as st

from flowengine.evaluator import RunState, StepState, TaskState, working_set
from flowengine.evaluator.actions import (
    CURES,
    FULFILLED,
    HANDLERS,
    RUN_ACTIONS,
    STEP_ACTIONS,
    ActionKind,
    allowed_actions,
    why_refused,
)
from flowengine.evaluator.records import TaskHold
from flowengine.evaluator.states import RUN_TRANSITIONS, Signal
from flowengine.evaluator.triggers import Action, Failed, Succeeded
from tests.builders import always, block, catching, event, of, program, step, to, workflow
from tests.builders import given as input_of
from tests.examples_drawn import AT_RANDOM
from tests.unit.evaluator.in_memory_run import MemoryRun
from tests.unit.evaluator.programs_strategy import Case, case_of, cases

E = event("E", "x", "y")
CLEAN = step("clean", "E", x=9)


def run_of(*blocks: Any, **inputs: Any) -> MemoryRun:
    return MemoryRun(program(E, workflow("W", list(inputs), "out", *blocks)), inputs)


def chain(*steps: Any) -> MemoryRun:
    return run_of(block(*steps, yields=[to("W", out=1)]))


# --- the tables ---


def test_every_state_of_a_run_has_its_actions_and_its_transitions() -> None:
    assert set(RUN_ACTIONS) == set(STEP_ACTIONS) == set(RUN_TRANSITIONS) == set(RunState.ALL)
    assert set(RunState.ALL) == {*RunState.OPEN, *RunState.FINAL}
    assert set(CURES) <= set(RunState.ALL)


def test_an_allowed_action_has_a_handler_and_a_transition() -> None:
    signals = {
        ActionKind.CANCEL: Signal.CANCEL,
        ActionKind.HOLD: Signal.HOLD,
        ActionKind.RELEASE: Signal.RELEASE,
    }
    for state, kinds in RUN_ACTIONS.items():
        assert kinds <= set(HANDLERS)
        for kind in kinds & set(signals):
            assert signals[kind] in RUN_TRANSITIONS[state]
            assert state not in FULFILLED[kind]


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.FAILED])
def test_the_refusal_of_a_cancel_says_that_the_run_has_ended(state: str) -> None:
    reason = why_refused(ActionKind.CANCEL, state)
    assert reason == f"the run is {state}: it has ended, so nothing is left to cancel"
    assert allowed_actions(state) & {ActionKind.CANCEL, ActionKind.HOLD} == frozenset()


def test_a_refusal_in_an_open_state_names_the_actions_that_are_taken() -> None:
    reason = why_refused(ActionKind.HOLD, RunState.HELD)
    assert reason.startswith("the run is HELD, and takes cancel")
    assert "always blocks" in why_refused(ActionKind.HOLD, RunState.CANCELLING)


# --- cancel ---


def test_a_cancelled_run_ends_every_row_and_fences_its_tasks() -> None:
    run = chain(step("a", "E", x=1), step("b", "E", x=of("a.y")), step("c", "E", x=of("b.y")))
    run.succeed("W.a", y=1)
    run.act("cancel")
    assert run.view.state == RunState.CANCELLED
    assert run.states() == {
        "W": "Cancelled",
        "W.a": "Complete",
        "W.b": "Cancelled",
        "W.c": "Cancelled",
    }
    assert run.task("W.b").state == TaskState.CANCELED
    error = run.view.error
    assert error is not None
    assert error["type"] == "Cancelled"
    assert error["message"] == "cancelled by person:eva: duplicate"
    assert (error["actor"], error["reason"]) == ("person:eva", "duplicate")
    assert run.view.open_steps == 0


def test_no_catch_takes_a_cancellation() -> None:
    run = run_of(
        block(
            catching(step("s", "E", x=1), step("other", "E", x=2), yields=[to("E", y=1)]),
            yields=[to("W", out=of("s.y"))],
        )
    )
    run.act("cancel")
    assert run.view.state == RunState.CANCELLED
    assert "W.s[catch].other" not in run.states()


def test_always_blocks_run_before_the_run_is_cancelled() -> None:
    run = chain(always(step("s", "E", x=1), CLEAN))
    run.act("cancel")
    assert run.view.state == RunState.CANCELLING
    assert [task.step_path for task in run.outstanding()] == ["W.s[always].clean"]
    run.succeed("W.s[always].clean", y=1)
    assert run.view.state == RunState.CANCELLED
    assert run.step("W.s").state == StepState.CANCELLED
    assert run.step("W.s[always].clean").state == StepState.COMPLETE


def test_an_always_block_that_runs_already_goes_on() -> None:
    run = chain(always(step("s", "E", x=1), CLEAN, step("more", "E", x=of("clean.y"))))
    run.succeed("W.s", y=1)
    run.act("cancel")
    run.succeed("W.s[always].clean", y=1)
    run.succeed("W.s[always].more", y=1)
    assert run.view.state == RunState.CANCELLED
    assert run.step("W.s").state == StepState.COMPLETE


def test_a_try_in_an_always_block_is_repeated() -> None:
    document = program(
        event("E", "x", "y", options={"retry": {"attempts": 2}}),
        workflow(
            "W", [], "out", block(always(step("s", "E", x=1), CLEAN), yields=[to("W", out=1)])
        ),
    )
    run = MemoryRun(document)
    run.act("cancel")
    run.fail("W.s[always].clean")
    assert run.task("W.s[always].clean").try_number == 2
    run.succeed("W.s[always].clean", y=1)
    assert run.view.state == RunState.CANCELLED


def test_a_failed_always_block_is_named_in_the_error_of_the_run() -> None:
    run = chain(always(step("s", "E", x=1), CLEAN))
    run.act("cancel")
    run.fail("W.s[always].clean", "no disk")
    assert run.view.state == RunState.CANCELLED
    assert run.view.error is not None
    assert run.view.error["message"].startswith("cancelled by person:eva: duplicate (while")
    assert "no disk" in run.view.error["message"]


def test_an_always_block_is_cancelled_when_its_time_is_over() -> None:
    run = chain(always(step("s", "E", x=1), CLEAN))
    changes = run.act("cancel")
    (timer,) = changes.created_timers
    assert timer.kind == "cleanup"
    run.end_cleanup()
    assert run.view.state == RunState.CANCELLED
    assert run.step("W.s[always].clean").state == StepState.CANCELLED
    assert [each for commit in run.commits for each in commit.ended_timers] == [timer.id]


def test_a_run_without_always_blocks_needs_no_timer() -> None:
    run = chain(step("a", "E", x=1))
    assert run.act("cancel").created_timers == []
    assert run.view.state == RunState.CANCELLED


def test_a_step_that_has_not_begun_runs_no_always_block() -> None:
    run = chain(step("a", "E", x=1), always(step("b", "E", x=of("a.y")), CLEAN))
    run.act("cancel")
    assert run.view.state == RunState.CANCELLED
    assert "W.b[always].clean" not in run.states()


def test_a_second_cancel_changes_nothing() -> None:
    run = chain(always(step("s", "E", x=1), CLEAN))
    run.act("cancel")
    assert run.act("cancel", actor="person:bob").is_empty
    run.succeed("W.s[always].clean", y=1)
    assert run.act("cancel").is_empty
    assert run.view.error is not None
    assert run.view.error["actor"] == "person:eva"


def test_a_cancel_of_an_ended_run_is_refused() -> None:
    run = chain(step("a", "E", x=1))
    run.succeed("W.a", y=1)
    (refusal,) = run.act("cancel").refusals
    assert refusal.reason == "the run is COMPLETED: it has ended, so nothing is left to cancel"


def test_a_long_foreach_is_cancelled_page_by_page_and_begins_no_item() -> None:
    each = block(step("each", "E", x=input_of("i")), foreach=("i", input_of("many")))
    with mock.patch.object(working_set, "PORTION", 10), mock.patch.object(working_set, "PAGE", 4):
        run = MemoryRun(program(E, workflow("W", ["many"], "out", each)), {"many": list(range(30))})
        tasks = len(run.tasks)
        assert tasks == 10
        run.act("cancel")
    assert run.view.state == RunState.CANCELLED
    assert len(run.tasks) == tasks
    assert max(len(commit.canceled_steps) for commit in run.commits) <= 4


def test_a_report_that_comes_before_its_page_is_recorded() -> None:
    run = run_of(block(step("a", "E", x=1)), block(step("b", "E", x=1)))
    with mock.patch.object(working_set, "PAGE", 1):
        run.consume_inbox(_cancel(run))
        assert run.view.state == RunState.CANCELLING
        run.report_all([(run.task("W.block-0.a"), _done()), (run.task("W.block-1.b"), _failed())])
    assert run.view.state == RunState.CANCELLED
    assert run.step("W.block-0.a").state == StepState.COMPLETE
    assert run.step("W.block-1.b").state == StepState.CANCELLED


# --- hold and release ---


def test_the_new_tasks_of_a_held_run_are_held() -> None:
    run = chain(step("a", "E", x=1), step("b", "E", x=of("a.y")))
    assert run.act("hold").task_hold is TaskHold.HOLD
    assert run.view.state == RunState.HELD
    run.succeed("W.a", y=1)
    assert run.task("W.b").state == TaskState.HELD
    assert run.act("hold").is_empty
    assert run.act("release").task_hold is TaskHold.RELEASE
    assert run.view.state == RunState.RUNNING
    assert run.act("release").is_empty


def test_a_held_run_ends_with_its_last_running_try() -> None:
    run = chain(step("a", "E", x=1))
    run.act("hold")
    run.succeed("W.a", y=1)
    assert run.view.state == RunState.COMPLETED


def test_a_held_run_can_be_cancelled() -> None:
    run = chain(always(step("s", "E", x=1), CLEAN))
    run.act("hold")
    assert run.act("cancel").task_hold is TaskHold.RELEASE
    assert run.task("W.s[always].clean").state == TaskState.PENDING
    run.succeed("W.s[always].clean", y=1)
    assert run.view.state == RunState.CANCELLED


# --- random programs ---


@settings(
    max_examples=300 if AT_RANDOM else 30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(case=cases(), seed=st.integers(0, 2**16), forgetful=st.booleans())
@example(case=case_of(1, 1, 0, 0), seed=10460, forgetful=False)  # held before its first commit
def test_a_random_program_ends_wherever_it_is_cancelled(
    case: Case, seed: int, forgetful: bool
) -> None:
    """`MemoryRun` checks the invariants after every commit."""
    order = Random(seed)
    with (
        mock.patch.object(working_set, "PORTION", order.choice([1, 3, 100])),
        mock.patch.object(working_set, "PAGE", order.choice([1, 2, 100])),
    ):
        run = MemoryRun(case.document, case.inputs, forgetful=forgetful)
        left = order.randint(0, 12)
        while run.view.state not in RunState.FINAL:
            if len(run.rows) > 250:
                reject()
            if left == 0:
                run.consume_inbox(_cancel(run))
            elif left < 0 and order.random() < 0.1:
                run.act(order.choice(["cancel", "hold", "release"]))
            elif left > 0 and order.random() < 0.2:
                run.act(order.choice(["hold", "release"]))
            left -= 1
            if order.random() < 0.5:
                run.settle()
            outstanding = run.outstanding()
            if run.view.state == RunState.CANCELLING and not run.facts:
                assert all("[always]" in task.step_path for task in outstanding)
            if outstanding:
                task = order.choice(outstanding)
                run.report(task, case.answer(task) or _done())
            elif not run.facts and left < 0 and run.view.state == RunState.CANCELLING:
                raise AssertionError("a cancelled run waits for nothing")
        final = run.view.state
        assert final in RunState.FINAL
        if final == RunState.CANCELLED:
            assert run.step("W").state == StepState.CANCELLED


def _cancel(run: MemoryRun) -> Action:
    return Action(f"c{run.now}", "cancel", "person:eva", "", run.now)


def _done() -> Succeeded:
    return Succeeded({"y": 1})


def _failed() -> Failed:
    return Failed({"type": "Oops", "message": "broken"})
