"""Durable functions: calls become rows, ends are told in order, the function ends once."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.evaluator import IterationChanges, StepState, TaskDefinition
from flowengine.evaluator.call_statements import call_key, key_prefix
from flowengine.evaluator.records import ACTIVATION, RUN_CALL, Step
from flowengine.evaluator.triggers import (
    ActivationEnded,
    Failed,
    Lost,
    Succeeded,
    TimerFired,
)
from flowengine.program.event_options import EventOptions, RetryPolicy
from flowengine.program.function_calls import CallKind, FunctionCall, arguments_digest
from flowengine.program.standard import SLEEP
from tests.builders import block, event, given, of, program, step, to, workflow
from tests.unit.evaluator.in_memory_run import MemoryRun

F = "W.research"
ONCE = Failed({"type": "Oops", "message": "broken"}, retry=True)


def document(*after: Any, **options: Any) -> Any:
    body = block(
        step("research", "Research@2", q=given("q")),
        *after,
        yields=[to("W", out=of("research.result"))],
    )
    function = event("Research@2", "q", "result", options=options) | {"function": {"version": 2}}
    return program(function, event("E", "x", "y"), workflow("W", "q", "out", body))


def started(**options: Any) -> MemoryRun:
    return MemoryRun(document(**options), {"q": "why"})


def call(number: int, facet: str = "shop.ask", **details: Any) -> FunctionCall:
    arguments = details.pop("arguments", {"n": number})
    kind = details.pop("kind", CallKind.EVENT)
    return FunctionCall(number, kind, facet, arguments, arguments_digest(arguments), **details)


def activation(run: MemoryRun) -> TaskDefinition:
    """The open activation of the function."""
    (task,) = [task for task in run.outstanding() if task.data_type == ACTIVATION]
    return task


def is_active(run: MemoryRun) -> bool:
    return any(task.data_type == ACTIVATION for task in run.outstanding())


def activated(run: MemoryRun, *calls: FunctionCall, **report: Any) -> IterationChanges:
    """Report the open activation; without `seen` it was told of all ends so far."""
    report.setdefault("seen", function(run).item_count)
    return run.report(activation(run), ActivationEnded(calls, **report))


def function(run: MemoryRun) -> Step:
    return run.step(F)


def row(run: MemoryRun, number: int) -> Step:
    return run._step(call_key(F, number))


def path(number: int, name: str = "ask") -> str:
    return f"{F}.{name}#{number}"


def end(run: MemoryRun, result: Any = "because", **report: Any) -> None:
    activated(run, ended=Succeeded({"result": result}), **report)


# --- calls ---


def test_the_first_activation_is_a_task_of_the_function() -> None:
    run = started()
    task = activation(run)
    assert (task.name, task.step_path, task.data) == ("Research@2", F, {"q": "why"})
    assert function(run).activation == 1


def test_a_call_becomes_a_row_with_its_own_statement_and_a_task() -> None:
    run = started()
    options = EventOptions(task_list="gpu", retry=RetryPolicy(attempts=3), timeout=5)
    activated(run, call(0, options=options))
    assert function(run).state == StepState.SUSPENDED
    made = row(run, 0)
    assert (made.path, made.facet_name, made.params) == (path(0), "shop.ask", {"n": 0})
    assert made.digest == arguments_digest({"n": 0})
    task = run.task(path(0))
    assert (task.name, task.task_list_name, task.timeout_ms) == ("shop.ask", "gpu", 5_000)
    assert run.outstanding() == [task]


def test_the_end_of_a_call_opens_the_next_activation() -> None:
    run = started()
    activated(run, call(0))
    run.succeed(path(0), result=42)
    task = activation(run)
    assert (task.try_number, task.losses) == (2, 0)
    assert function(run).state == StepState.EVENT_TRANSMIT
    assert row(run, 0).returns == {"result": 42}
    end(run)
    assert run.outputs == {"out": "because"}
    assert run.view.state == "COMPLETED"


def test_a_function_has_one_event_however_many_activations() -> None:
    run = started()
    for number in range(3):
        activated(run, call(number))
        run.succeed(path(number), result=number)
    end(run)
    assert len(run.events) == 4


def test_ends_are_numbered_in_the_order_of_their_reports() -> None:
    run = started()
    activated(run, call(0), call(1), call(2))
    run.succeed(path(1), result="b")
    run.report_all([(run.task(path(n)), Succeeded({"result": n})) for n in (2, 0)])
    assert [row(run, number).item_count for number in range(3)] == [3, 1, 2]
    assert function(run).item_count == 3


def test_an_end_during_an_activation_makes_the_function_due_again_after_its_report() -> None:
    run = started()
    activated(run, call(0), call(1))
    run.succeed(path(0), result=0)
    first = activation(run)
    run.succeed(path(1), result=1)
    assert activation(run) is first
    activated(run, heard=(0,), seen=1)
    assert activation(run).try_number == first.try_number + 1
    assert function(run).heard == (0,)


def test_an_activation_that_received_all_ends_suspends_the_function() -> None:
    run = started()
    activated(run, call(0), call(1))
    run.succeed(path(0), result=0)
    activated(run, heard=(0,))
    assert not is_active(run)
    assert function(run).state == StepState.SUSPENDED


def test_further_calls_of_a_partial_report_are_asked_for_at_once() -> None:
    run = started()
    activated(run, call(0), is_partial=True)
    assert activation(run).try_number == 2
    activated(run, call(1))
    assert function(run).remaining == 2


def test_the_keys_of_calls_are_adjacent_and_in_order() -> None:
    keys = [call_key(F, number) for number in (0, 9, 10, 255, 9_999)]
    assert keys == sorted(keys)
    assert all(len(key) == 32 and key.startswith(key_prefix(F)) for key in keys)


# --- failures ---


def test_a_failed_call_does_not_fail_its_function() -> None:
    run = started()
    activated(run, call(0))
    run.fail(path(0))
    assert row(run, 0).state == StepState.ERROR
    assert is_active(run)
    end(run, "saved")
    assert run.outputs == {"out": "saved"}


def test_the_retries_of_a_call_are_those_of_its_facet() -> None:
    run = started()
    activated(run, call(0, options=EventOptions(retry=RetryPolicy(attempts=2))))
    run.fail(path(0))
    assert not is_active(run)
    assert run.task(path(0)).try_number == 2
    run.fail(path(0))
    assert "failed 2 of 2 tries" in (row(run, 0).error or {})["message"]
    assert is_active(run)


def test_a_call_that_failed_in_place_has_had_its_first_try() -> None:
    run = started()
    again = EventOptions(retry=RetryPolicy(attempts=2))
    activated(run, call(0, options=again), call(1), failed=ONCE)
    assert [task.try_number for task in (run.task(path(0)), run.task(path(1)))] == [2, 1]


def test_the_last_failure_of_a_call_in_place_activates_the_function_at_once() -> None:
    run = started()
    activated(run, call(0), failed=ONCE)
    assert row(run, 0).state == StepState.ERROR
    assert is_active(run)


def test_a_function_fails_the_run_with_the_error_of_its_code() -> None:
    run = started()
    activated(run, ended=Failed({"type": "Refused", "message": "no"}, retry=False))
    assert run.view.state == "FAILED"
    assert (run.view.error or {})["type"] == "Refused"
    assert (run.view.error or {})["path"] == F


def test_an_error_that_a_call_had_names_the_call() -> None:
    run = started()
    activated(run, call(0))
    run.fail(path(0))
    error = {"type": "Oops", "message": "broken", "path": path(0)}
    activated(run, heard=(0,), ended=Failed(error, retry=False))
    assert (run.view.error or {})["path"] == path(0)


def test_a_function_whose_activation_fails_ends_with_its_open_calls() -> None:
    run = started()
    activated(run, call(0), call(1))
    run.succeed(path(0), result=0)
    run.report(activation(run), Failed({"type": "MissingCode", "message": "no code"}, False))
    assert row(run, 1).state == StepState.CANCELLED
    assert run.view.state == "FAILED"
    assert (run.view.error or {})["type"] == "MissingCode"
    assert run.outstanding() == []


# --- cancelled calls ---


def test_a_cancelled_call_is_fenced_and_never_wakes_its_function() -> None:
    run = started()
    activated(run, call(0), call(1))
    run.succeed(path(0), result=0)
    changes = activated(run, call(2), heard=(0,), cancelled=(1,))
    assert row(run, 1).state == StepState.CANCELLED
    assert row(run, 1).id in changes.canceled_steps
    assert not is_active(run)
    assert function(run).remaining == 1
    assert function(run).item_count == 1


def test_a_call_may_be_made_and_cancelled_at_once() -> None:
    run = started()
    activated(run, call(0), call(1), cancelled=(0,))
    assert row(run, 0).state == StepState.CANCELLED
    assert [task.step_path for task in run.outstanding()] == [path(1)]


def test_a_function_that_ends_cancels_the_calls_it_does_not_wait_for() -> None:
    run = started()
    activated(run, call(0), call(1))
    run.succeed(path(0), result=0)
    end(run, heard=(0,), cancelled=(1,))
    assert run.view.state == "COMPLETED"
    assert run.outstanding() == []


def test_a_cancelled_call_that_has_ended_meanwhile_stays_as_it_ended() -> None:
    run = started()
    activated(run, call(0), call(1))
    run.succeed(path(0), result=0)
    run.succeed(path(1), result=1)
    activated(run, call(2), heard=(0,), cancelled=(1,), seen=1)
    assert row(run, 1).state == StepState.COMPLETE
    assert is_active(run)


# --- waits and runs ---


def sleep(number: int, due: int) -> FunctionCall:
    return call(number, SLEEP, kind=CallKind.WAIT, arguments={"seconds": 5.0}, due=due)


def test_a_timer_is_due_when_its_call_says() -> None:
    run = started()
    changes = activated(run, sleep(0, 7_000))
    (timer,) = changes.created_timers
    assert (timer.due, timer.step_id) == (7_000, row(run, 0).id)
    assert run.outstanding() == []
    run.consume_inbox(TimerFired(row(run, 0).id, row(run, 0).key, SLEEP))
    assert is_active(run)


def test_a_timer_that_is_past_is_heard_by_the_next_activation() -> None:
    run = started()
    activated(run, sleep(0, 1))
    assert row(run, 0).state == StepState.COMPLETE
    assert is_active(run)


def test_a_cancelled_timer_is_removed() -> None:
    run = started()
    activated(run, sleep(0, 7_000), call(1))
    run.succeed(path(1), result=1)
    changes = activated(run, call(2), heard=(1,), cancelled=(0,))
    assert changes.ended_waits == [row(run, 0).id]


def test_an_awaited_workflow_is_started_by_a_worker_with_the_code_of_the_function() -> None:
    run = started(task_list="agents")
    activated(run, call(0, "shop.survey", kind=CallKind.RUN))
    task = run.task(path(0, "survey"))
    assert (task.name, task.data_type, task.task_list_name) == ("Research@2", RUN_CALL, "agents")


def test_the_deadline_of_a_call_is_recorded_as_its_error() -> None:
    run = started()
    changes = activated(run, call(0, deadline=2.0))
    (timer,) = changes.created_timers
    changes = run.consume_inbox(TimerFired(row(run, 0).id, row(run, 0).key, timer.kind))
    assert (row(run, 0).error or {})["type"] == "DeadlineExceeded"
    assert is_active(run)
    assert changes.ended_timers == [timer.id]


def test_calls_of_a_group_are_counted_together() -> None:
    run = started()
    changes = activated(run, *(call(number, group=0) for number in range(9)), call(9))
    joins = [task.join for task in changes.created_tasks]
    assert len({*joins[:9]}) == 1
    assert joins[0]
    assert joins[9] == ""


# --- losses ---


def test_a_lost_activation_is_opened_again() -> None:
    run = started()
    run.report(activation(run), Lost("killed"))
    assert (activation(run).try_number, activation(run).losses) == (1, 1)


def test_an_activation_that_kills_its_workers_fails_the_function() -> None:
    run = started()
    for _ in range(4):
        run.report(activation(run), Lost("killed"))
    assert run.view.state == "FAILED"
    assert "died 4 times" in (run.view.error or {})["message"]


def test_losses_are_counted_anew_when_the_function_has_made_progress() -> None:
    run = started()
    for number in range(20):
        run.report(activation(run), Lost("killed"))
        run.report(activation(run), Lost("killed"))
        activated(run, call(number))
        run.succeed(path(number), result=number)
        assert activation(run).losses == 0


def test_a_call_that_was_recorded_in_place_is_progress_too() -> None:
    run = started()
    activated(run, call(0))
    run.succeed(path(0), result=0)
    for number in range(1, 10):
        run.report(activation(run), Lost("killed"))
        inserted = row(run, 0)
        inserted.key, inserted.id, inserted.index = call_key(F, number), f"id{number}", number
        inserted.created = run.now + 1
        run.rows[inserted.key] = run._stored(inserted)
    assert is_active(run)


# --- control of the run ---


@pytest.mark.parametrize("is_under_way", [True, False])
def test_a_cancelled_run_ends_its_function_and_its_calls(is_under_way: bool) -> None:
    run = started()
    activated(run, call(0), call(1), sleep(2, 9_000))
    if is_under_way:
        run.succeed(path(0), result=0)
    run.act("cancel")
    assert run.view.state == "CANCELLED"
    assert function(run).state == StepState.CANCELLED
    assert row(run, 1).state == row(run, 2).state == StepState.CANCELLED
    assert run.outstanding() == []


def test_a_held_run_opens_held_activations() -> None:
    run = started()
    activated(run, call(0))
    run.act("hold")
    run.succeed(path(0), result=0)
    assert activation(run).state == "held"


def failed_run() -> MemoryRun:
    """A function that has made three calls, and fails because of the second."""
    run = started()
    activated(run, call(0))
    run.succeed(path(0), result=0)
    activated(run, call(1, heard=(0,)), call(2))
    run.succeed(path(2), result=2)
    run.fail(path(1))
    error = {"type": "Oops", "message": "broken", "path": path(1)}
    activated(run, heard=(2, 1), ended=Failed(error, retry=False))
    assert run.view.state == "FAILED"
    return run


def test_a_retried_function_makes_the_failed_call_and_later_ones_again() -> None:
    run = failed_run()
    kept = row(run, 0).id
    run.act("retry")
    assert activation(run).try_number == 1
    assert row(run, 0).id == kept
    assert run._find(call_key(F, 1)) is run._find(call_key(F, 2)) is None
    activated(run, call(1, heard=(0,)), call(2))
    run.succeed(path(1), result=1)
    assert row(run, 1).item_count > row(run, 0).item_count
    run.succeed(path(2), result=2)
    end(run, heard=(1, 2), seen=9)
    assert run.view.state == "COMPLETED"


def test_a_function_that_failed_by_its_own_code_keeps_all_its_calls() -> None:
    run = started()
    activated(run, call(0))
    run.succeed(path(0), result=0)
    activated(run, heard=(0,), ended=Failed({"type": "Bug", "message": "no"}, retry=False))
    run.act("retry")
    assert row(run, 0).state == StepState.COMPLETE
    assert function(run).item_count == 1
    end(run, heard=(0,))
    assert run.view.state == "COMPLETED"


def test_a_run_is_retried_from_a_call_on() -> None:
    run = failed_run()
    assert run.ask("retry", from_step=path(2)) == ""
    assert [run._find(call_key(F, number)) is None for number in range(3)] == [False, False, True]
    activated(run, call(2))
    run.succeed(path(2), result=2)
    end(run, heard=(2,))
    assert run.view.state == "COMPLETED"


def test_a_retry_from_the_function_makes_all_calls_again() -> None:
    run = failed_run()
    assert run.ask("retry", from_step=F) == ""
    assert run._find(call_key(F, 0)) is None
    assert function(run).item_count == 0


def test_a_cancelled_run_that_is_retried_makes_the_cancelled_calls_again() -> None:
    run = started()
    activated(run, call(0), call(1))
    run.succeed(path(0), result=0)
    activated(run, heard=(0,))
    run.act("cancel")
    run.act("retry")
    assert row(run, 0).state == StepState.COMPLETE
    assert run._find(call_key(F, 1)) is None
    activated(run, call(1))
    run.succeed(path(1), result=1)
    end(run, heard=(0, 1))
    assert run.view.state == "COMPLETED"


def test_an_open_call_is_ended_by_hand_and_a_function_with_open_calls_is_not() -> None:
    run = started()
    activated(run, call(0), call(1))
    assert "in progress" in run.ask("complete", step=F, result={"result": 1})
    assert run.ask("complete", step=path(0), result={"result": 7}) == ""
    assert row(run, 0).returns == {"result": 7}
    assert is_active(run)
    assert "in progress" in run.ask("skip", step=F)


def test_steps_behind_a_function_go_on_with_its_result() -> None:
    run = MemoryRun(document(step("next", "E", x=of("research.result"))), {"q": "why"})
    activated(run, call(0))
    run.succeed(path(0), result=0)
    end(run, 7, heard=(0,))
    assert run.task("W.next").data == {"x": 7}
