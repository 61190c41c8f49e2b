"""Cancel, hold and release of runs, on both databases."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from sqlalchemy import select

from flowengine import attempt, event_facet, foreach, sleep, wait_for, workflow
from flowengine.actors import Actor, ActorKind
from flowengine.errors import (
    ActionRefused,
    AnswerRefused,
    InvalidActor,
    InvalidFilter,
    RunCancelled,
)
from flowengine.evaluator.actions import ActionKind
from flowengine.evaluator.states import RunState, StepState, TaskState
from flowengine.settings import Settings
from flowengine.store.tables import FactRow, HistoryRow, TimerRow
from flowengine.testing import Flow

undone: list[str] = []


@event_facet
def book(what: str) -> str:
    return what


@event_facet
def undo(what: str) -> None:
    undone.append(what)


@event_facet
def lend(what: str) -> str:
    return trip.call(what)


@event_facet
def lend_and_leave(what: str) -> str:
    return trip.options(on_cancel="leave").call(what)


@workflow
def trip(hotel: str) -> str:
    booked = book(hotel)
    return book.after(booked)("a car")


@workflow
def saga(hotel: str) -> str:
    return attempt(lambda: book(hotel), always=lambda: undo(hotel))


@workflow
def parent(hotel: str) -> str:
    return lend(hotel)


@workflow
def loose_parent(hotel: str) -> str:
    return lend_and_leave(hotel)


@workflow
def starts_and_waits(hotel: str) -> str:
    child = trip.start(hotel)
    return book.after(child.id)("then")


@workflow
def starts_and_leaves(hotel: str) -> str:
    child = trip.options(on_cancel="leave").start(hotel)
    return book.after(child.id)("then")


@workflow
def fan(many: list[str]) -> list[str]:
    return foreach(many, lambda each: book(each))


@workflow
def waits() -> str:
    sleep(3600.0)
    return wait_for("answer", str)


@pytest.fixture
def flow(database_url: str):
    undone.clear()
    with Flow(store_url=database_url) as flow:
        yield flow


def rows_of(flow: Flow, row: type[FactRow | HistoryRow | TimerRow]) -> list[Any]:
    with flow.database.read() as session:
        return list(session.connection.execute(select(row.__table__)))


# --- cancel ---


def test_a_cancelled_run_raises_who_and_why(flow: Flow) -> None:
    run = flow.start(trip, "Ritz")
    run.cancel(reason="duplicate", actor="eva")
    info = run.info()
    assert (info.state, info.is_final) == (RunState.CANCELLED, True)
    with pytest.raises(RunCancelled, match="was cancelled by person:eva: duplicate"):
        run.result(timeout=0)
    assert flow.settle() == 0
    assert {task.state for task in flow.engine.tasks(run.id)} == {TaskState.CANCELED}


def test_the_report_of_a_cancelled_try_is_refused_and_its_heartbeat_says_so(flow: Flow) -> None:
    run = flow.start(trip, "Ritz")
    worker = flow.worker("a")
    task = worker.claim(run, "book")
    assert flow.engine.heartbeat(task)
    run.cancel()
    assert not flow.engine.heartbeat(task)
    assert not worker.report(task, "Ritz")
    assert run.state == RunState.CANCELLED


def test_an_always_block_runs_and_ends_the_cancellation(flow: Flow) -> None:
    run = flow.start(saga, "Ritz")
    run.cancel(reason="rain")
    assert run.state == RunState.CANCELLING
    assert flow.settle() == 1
    assert (run.state, undone) == (RunState.CANCELLED, ["Ritz"])
    assert rows_of(flow, TimerRow)[0].fired is not None
    flow.clock.advance(hours=1)
    flow.watchdog()
    assert run.state == RunState.CANCELLED


def test_an_always_block_that_takes_too_long_is_cancelled(database_url: str) -> None:
    with Flow(store_url=database_url, settings=Settings(cleanup_timeout=60.0)) as flow:
        run = flow.start(saga, "Ritz")
        run.cancel()
        task = flow.worker("slow").claim(run, "undo")
        flow.clock.advance(seconds=59)
        flow.watchdog()
        assert run.state == RunState.CANCELLING
        flow.clock.advance(seconds=1)
        flow.watchdog()
        assert run.state == RunState.CANCELLED
        assert not flow.worker("slow").report(task, None)


@pytest.mark.parametrize("action", list(ActionKind)[:3])
def test_an_action_on_an_ended_run_is_refused_and_changes_nothing(
    flow: Flow, action: ActionKind
) -> None:
    run = flow.start(trip, "Ritz")
    flow.settle()
    before = run.info()
    with pytest.raises(ActionRefused, match="the run is COMPLETED: it has ended, so nothing is"):
        flow.engine.control.act(run.id, action)
    assert run.info() == before
    assert run.result(timeout=0) == "a car"


def test_a_second_cancel_is_no_error_and_keeps_the_first_reason(flow: Flow) -> None:
    run = flow.start(saga, "Ritz")
    run.cancel(reason="first")
    run.cancel(reason="second")
    flow.settle()
    run.cancel(reason="third")
    error = run.info().error
    assert error is not None
    assert error["reason"] == "first"


def test_an_action_with_a_used_key_is_applied_once(flow: Flow) -> None:
    run = flow.start(trip, "Ritz")
    run.hold(key="deploy-7")
    run.release()
    run.hold(key="deploy-7")
    assert run.state == RunState.RUNNING


def test_the_key_of_a_refused_action_is_free_again(flow: Flow) -> None:
    run = flow.start(saga, "Ritz")
    run.cancel()
    with pytest.raises(ActionRefused, match="always blocks"):
        run.hold(key="once")
    with pytest.raises(ActionRefused, match="always blocks"):
        run.hold(key="once")


def test_an_action_is_a_fact_with_its_actor_and_its_reason(flow: Flow) -> None:
    run = flow.start(trip, "Ritz")
    run.hold(actor=Actor(ActorKind.TOKEN, "ci"), reason="deploy")
    (fact,) = rows_of(flow, FactRow)
    assert (fact.kind, fact.actor, fact.reason) == ("Action", "token:ci", "deploy")
    summaries = [row.summary for row in rows_of(flow, HistoryRow)]
    assert any('"hold"' in text and '"token:ci"' in text for text in summaries)
    run.release()
    assert rows_of(flow, FactRow)[-1].actor.startswith("server:")


@pytest.mark.parametrize("name", [" ", "x" * 300, "a\nb"])
def test_the_name_of_an_actor_is_checked(flow: Flow, name: str) -> None:
    run = flow.start(trip, "Ritz")
    with pytest.raises(InvalidActor, match="names no actor"):
        run.cancel(actor=name)
    assert run.state == RunState.RUNNING


def test_a_cancelled_run_takes_no_answer_and_has_no_timer(flow: Flow) -> None:
    run = flow.start(waits)
    run.cancel()
    assert run.state == RunState.CANCELLED
    with pytest.raises(AnswerRefused, match="the run has ended"):
        run.send("answer", "yes")
    assert all(timer.fired is not None for timer in rows_of(flow, TimerRow))


def test_a_wide_loop_with_join_counters_is_cancelled(flow: Flow) -> None:
    run = flow.start(fan, [f"room {number}" for number in range(40)])
    worker = flow.worker("a")
    for _ in range(3):
        task = worker.claim_next()
        assert task is not None
        worker.work_on(task)
    run.cancel()
    assert run.state == RunState.CANCELLED
    states = [step.state for step in run.steps() if step.facet.endswith("book")]
    assert states.count(StepState.COMPLETE) == 3
    assert states.count(StepState.CANCELLED) == 37
    assert flow.settle() == 0


# --- answers ---


@workflow
def closing_talk(hotel: str) -> str:
    return attempt(
        lambda: wait_for("payment", str),
        always=lambda: wait_for("confirmation", str),
    )


@workflow
def reported_talk(hotel: str) -> str:
    return attempt(lambda: wait_for("payment", str), failed=lambda error: undo(hotel))


def test_a_cancelled_run_is_not_reported_as_a_failure(flow: Flow) -> None:
    undone.clear()
    run = flow.start(reported_talk, "Ritz")
    run.cancel()
    flow.settle()
    assert run.state == RunState.CANCELLED
    assert undone == []


def test_an_answer_that_no_step_of_a_cancelling_run_waits_for_is_refused(flow: Flow) -> None:
    run = flow.start(closing_talk, "Ritz")
    run.cancel()
    assert run.state == RunState.CANCELLING
    with pytest.raises(AnswerRefused) as caught:
        run.send("price", 7)
    problem = "the run is being cancelled, and no step of it waits for 'price'"
    assert caught.value.reason == problem
    with pytest.raises(AnswerRefused, match=r"has stopped waiting for 'payment'"):
        run.send("payment", "cash")
    run.send("confirmation", "yes")  # an always block waits for it
    assert run.state == RunState.CANCELLED
    assert not [step for step in run.steps() if "price" in step.path]


# --- child runs ---


def test_the_child_runs_of_a_cancelled_run_are_cancelled(flow: Flow) -> None:
    run = flow.start(parent, "Ritz")
    worker = flow.worker("a")
    worker.work_on(worker.claim(run, "lend"))
    (child,) = [info for info in flow.engine.list() if info.parent == run.id]
    run.cancel(reason="rain", actor="eva")
    error = flow.engine.get(child.id).error
    assert flow.engine.get(child.id).state == run.state == RunState.CANCELLED
    assert error is not None
    assert error["message"] == f"cancelled by person:eva: run {run.id} was cancelled: rain"


@pytest.mark.parametrize("flow_of", [loose_parent, starts_and_leaves])
def test_a_child_run_that_is_left_goes_on(flow: Flow, flow_of: Any) -> None:
    run = flow.start(flow_of, "Ritz")
    worker = flow.worker("a")
    task = worker.claim_next()
    assert task is not None
    worker.work_on(task)
    (child,) = [info for info in flow.engine.list() if info.parent == run.id]
    run.cancel()
    flow.settle()
    assert run.state == RunState.CANCELLED
    assert flow.engine.get(child.id).state == RunState.COMPLETED


def test_a_started_child_run_is_cancelled_too(flow: Flow) -> None:
    run = flow.start(starts_and_waits, "Ritz")
    worker = flow.worker("a")
    worker.work_on(worker.claim(run, "trip"))
    (child,) = [info for info in flow.engine.list() if info.parent == run.id]
    run.cancel()
    assert flow.engine.get(child.id).state == RunState.CANCELLED


def test_a_child_run_that_starts_while_its_parent_is_cancelled_is_cancelled(flow: Flow) -> None:
    run = flow.start(parent, "Ritz")
    worker = flow.worker("a")
    task = worker.claim(run, "lend")
    run.cancel()
    assert not worker.work_on(task)
    (child,) = [info for info in flow.engine.list() if info.parent == run.id]
    assert child.state == RunState.CANCELLED


def test_recovery_cancels_child_runs_if_the_process_died(flow: Flow, monkeypatch) -> None:
    run = flow.start(parent, "Ritz")
    worker = flow.worker("a")
    worker.work_on(worker.claim(run, "lend"))
    monkeypatch.setattr(flow.engine.after_commit, "finish", lambda *_, **__: [])
    run.cancel()
    monkeypatch.undo()
    (child,) = [info for info in flow.engine.list() if info.parent == run.id]
    assert child.state == RunState.RUNNING
    flow.watchdog()
    assert flow.engine.get(child.id).state == RunState.CANCELLED


# --- hold and release ---


def test_no_task_of_a_held_run_is_claimed(flow: Flow) -> None:
    run = flow.start(trip, "Ritz")
    run.hold()
    assert run.state == RunState.HELD
    assert flow.settle() == 0
    run.release()
    assert flow.settle() == 2
    assert run.state == RunState.COMPLETED


def test_a_try_that_runs_may_end_and_the_next_step_is_held(flow: Flow) -> None:
    run = flow.start(trip, "Ritz")
    worker = flow.worker("a")
    task = worker.claim(run, "book")
    run.hold()
    assert worker.report(task, "Ritz")
    assert [task.state for task in flow.engine.tasks(run.id)][-1] == TaskState.HELD
    assert flow.settle() == 0
    run.release()
    flow.settle()
    assert run.result(timeout=0) == "a car"


def test_a_task_that_its_worker_gives_back_is_held(flow: Flow) -> None:
    run = flow.start(trip, "Ritz")
    worker = flow.worker("a")
    task = worker.claim(run, "book")
    run.hold()
    flow.engine.release(task)
    assert [task.state for task in flow.engine.tasks(run.id)] == [TaskState.HELD]
    run.release()
    task = worker.claim(run, "book")
    flow.engine.release(task)
    assert [task.state for task in flow.engine.tasks(run.id)] == [TaskState.PENDING]


def test_the_next_try_of_a_lost_one_is_held(flow: Flow) -> None:
    run = flow.start(trip, "Ritz")
    worker = flow.worker("a")
    worker.claim(run, "book")
    run.hold()
    worker.die()
    flow.watchdog()
    assert [task.state for task in flow.engine.tasks(run.id)] == [TaskState.FAILED, TaskState.HELD]
    run.release()
    flow.settle()
    assert run.state == RunState.COMPLETED


def test_a_held_run_takes_answers_and_timers(flow: Flow) -> None:
    run = flow.start(waits)
    run.hold()
    flow.clock.advance(hours=2)
    flow.watchdog()
    run.send("answer", "yes")
    assert run.result(timeout=0) == "yes"


def test_the_async_forms_do_the_same(flow: Flow) -> None:
    run = flow.start(trip, "Ritz")

    async def control_it() -> list[str]:
        states = []
        for act in (run.ahold, run.arelease, run.acancel):
            await act(actor="eva")
            states.append((await run.ainfo()).state)
        return states

    assert asyncio.run(control_it()) == ["HELD", "RUNNING", "CANCELLED"]


# --- in bulk ---


def test_runs_are_cancelled_by_filter_after_a_dry_run(flow: Flow, monkeypatch) -> None:
    monkeypatch.setattr("flowengine.engine.run_pages.PAGE", 2)
    old = [flow.start(trip, f"old {number}") for number in range(5)]
    other = flow.start(saga, "Ritz")
    flow.clock.advance(hours=24 * 31)
    new = flow.start(trip, "new")
    chosen = {"workflow": trip.name, "older_than": timedelta(days=30)}
    counted = flow.engine.cancel_all(**chosen, dry_run=True)
    assert (counted.matched, counted.applied, counted.dry_run) == (5, 0, True)
    assert {run.state for run in old} == {RunState.RUNNING}
    done = flow.engine.cancel_all(**chosen, reason="clean up", actor="schedule:monthly")
    assert (done.matched, done.applied, done.refused) == (5, 5, 0)
    assert {run.state for run in old} == {RunState.CANCELLED}
    assert (new.state, other.state) == (RunState.RUNNING, RunState.RUNNING)
    assert flow.engine.cancel_all(**chosen).matched == 0


def test_labels_and_states_choose_the_runs(flow: Flow) -> None:
    red = trip.options(labels={"team": "red"}).start("a")
    blue = trip.options(labels={"team": "blue"}).start("b")
    assert flow.engine.hold_all(label={"team": "red"}).applied == 1
    assert (red.state, blue.state) == (RunState.HELD, RunState.RUNNING)
    assert flow.engine.cancel_all(state="HELD", dry_run=True).matched == 1
    assert flow.engine.release_all().applied == 1
    assert red.state == RunState.RUNNING


def test_a_refusal_does_not_hold_up_the_others(flow: Flow) -> None:
    ended = flow.start(trip, "a")
    flow.settle()
    result = flow.engine.cancel_all(state="COMPLETED")
    assert (result.matched, result.applied, result.refused) == (1, 0, 1)
    assert "it has ended" in result.refusals[ended.id]


def test_a_filter_that_matches_nothing_by_mistake_is_refused(flow: Flow) -> None:
    with pytest.raises(InvalidFilter, match=r"state is 'DONE'.*QUEUED, RUNNING"):
        flow.engine.cancel_all(state="DONE")
    with pytest.raises(InvalidFilter, match="an age of 0 or more"):
        flow.engine.cancel_all(older_than=timedelta(days=-1))
    with pytest.raises(InvalidFilter, match="older_than is 'x'"):
        flow.engine.cancel_all(older_than=cast(Any, "x"))
    with pytest.raises(InvalidFilter, match="a map of text to text"):
        flow.engine.cancel_all(label=cast(Any, "x"))
    with pytest.raises(InvalidFilter, match="the filter limit is -1"):
        flow.engine.list(limit=-1)


def test_an_action_has_a_text_as_its_reason_and_an_actor(flow: Flow) -> None:
    run = flow.start(trip, "a")
    with pytest.raises(ActionRefused, match="its reason must be a text, not 5"):
        run.cancel(reason=cast(Any, 5))
    with pytest.raises(InvalidActor, match="names no actor"):
        run.cancel(actor=cast(Any, 5))
    assert run.state == RunState.RUNNING
