"""Twelve faults of an agent engine that were seen elsewhere, each as a promise that it is not here.

Each test builds the order of events that led to the fault.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from flowengine.agents.recovery import AgentRecovery
from flowengine.store.agent_inbox import Message
from flowengine.store.cards import Card
from flowengine.store.session import SqlSession
from flowengine.turns.states import InboxState, MessageType
from tests.integration.agents.clerks import (
    Office,
    ask_ada,
    ask_judge,
    calls,
    clerk,
    plan,
    searched,
    submit,
)


def test_a_turn_that_waits_long_for_a_worker_runs_once(desk: Office) -> None:
    """6.1: a watchdog rang again by a second row with the same turn, which ran twice."""
    plan.reset({"patient": ["done"]})
    turn = clerk.at("ada").send("patient")
    for _ in range(20):
        desk.tick(15)
    assert desk.inbox(turn) == [("turn", "pending")]
    desk.work()
    assert (turn.result(timeout=5), turn.info().epoch) == ("done", 1)
    assert plan.asked == [("patient", 0)]
    desk.check(turn)


def test_waiting_for_a_worker_is_no_fault_and_leaves_no_rows(desk: Office) -> None:
    """6.2: a limit for dispatched turns never fired, and left rows behind each time."""
    plan.reset({"patient": ["done"]})
    turn = clerk.at("ada").send("patient")
    before = desk.rows("SELECT count(*) FROM flowengine_agent_inbox")
    for _ in range(10):
        desk.tick(60)
    assert desk.head(turn).status == "dispatched"
    assert desk.rows("SELECT count(*) FROM flowengine_agent_inbox") == before
    turn.stop("nobody came")  # and it can be ended at any time
    desk.work()
    assert turn.info().status == "canceled"
    desk.check(turn)


def test_a_turn_that_is_enqueued_while_another_ends_is_dispatched(desk: Office) -> None:
    """6.3: an enqueue that saw a busy agent committed after its end, and nobody looked again."""
    plan.reset({"first": ["one"], "second": ["two"]})
    first = clerk.at("ada").send("first")
    advance = desk.agents._advance
    desk.agents._advance = lambda keys, continuation=None: []  # type: ignore[method-assign]
    second = clerk.at("ada").send("second")
    desk.agents._advance = advance  # type: ignore[method-assign]
    with desk.engine.database.write() as session:
        # The first one's end did not see the second: as if its commit came later.
        session.rows(
            "UPDATE flowengine_agent_inbox SET status = 'consumed' WHERE agent_turn_id = %s "
            "RETURNING inbox_id",
            (second.id,),
        )
    desk.flow.settle()
    assert desk.head("ada").status == "idle"
    with desk.engine.database.write() as session:
        session.rows(
            "UPDATE flowengine_agent_inbox SET status = 'queued' WHERE agent_turn_id = %s "
            "RETURNING inbox_id",
            (second.id,),
        )
    desk.tick()  # one pass is enough
    assert desk.head("ada").turn_id == second.id
    desk.work()
    assert (first.result(timeout=5), second.result(timeout=5)) == ("one", "two")


def test_a_queued_turn_that_nobody_waits_for_never_starts(desk: Office) -> None:
    """6.4: a queued child could not be cancelled, and ran after its batch had ended."""
    plan.reset({"long": [calls("search"), "done"], "child": ["never"]})
    long = clerk.at("ada").send("long")
    desk.until_suspended(long)
    run = ask_ada.start("child")
    worker = desk.flow.worker("asks")
    worker.work_on(worker.claim(run, "clerk"))
    run.cancel(reason="not needed")
    desk.tick()
    desk.tick()
    desk.work()
    assert [text for text, _ in plan.asked] == ["long", "long"]
    child = desk.agents.handle("", _turn_of(desk, run.id))
    assert (child.info().status, child.info().error_code) == ("canceled", "not_wanted")
    desk.check(long, child)


def _turn_of(desk: Office, run_id: str) -> str:
    found = desk.rows(
        "SELECT agent_turn_id FROM flowengine_agent_turn WHERE waiting_run_id = %s", run_id
    )
    return str(found[0][0])


def test_a_crash_while_a_report_is_applied_leaves_nothing_half_done(
    desk: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6.5: the call was marked as applied, the process died, and the turn waited for ever."""
    plan.reset({"crash": [calls("search"), "done"]})
    turn = clerk.send("crash")
    (call,) = desk.until_suspended(turn)

    written = SqlSession.commit

    def die(*args: Any, **options: Any) -> None:
        written(*args, **options)
        raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(SqlSession, "commit", die)  # the transaction is still open
        with pytest.raises(SystemExit):
            turn.report(call.id, "mine")
    assert desk.calls(turn)[0].state == "waiting"
    desk.tick()
    desk.work()
    assert turn.result(timeout=5) == "done"
    assert desk.results(turn) == ["mine"]
    desk.check(turn)


def test_a_poisoned_call_does_not_stop_the_timeouts_of_others(
    desk: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """6.6: one call whose timeout could not be written aborted every pass, for all agents."""
    plan.reset({text: [calls("hurried"), f"done {text}"] for text in "abc"})
    turns = [clerk.at(name).send(name) for name in "abc"]
    for turn in turns:
        desk.until_suspended(turn)
    expire = AgentRecovery._expire

    def poisoned(recovery: AgentRecovery, project: str, agent: str) -> None:
        if agent == "a":
            raise IntegrityError("INSERT", {}, Exception("unique"))
        expire(recovery, project, agent)

    monkeypatch.setattr(AgentRecovery, "_expire", poisoned)
    desk.tick(31)
    heads = {name: desk.head(name).status for name in "abc"}
    assert heads == {"a": "suspended", "b": "running", "c": "running"}
    failed = [r for r in caplog.records if r.__dict__.get("action") == "agent_failed"]
    assert {(r.__dict__["agent"], r.getMessage()) for r in failed} == {
        ("a", "recovery of agent a failed; the next recovery pass tries again")
    }
    monkeypatch.undo()
    desk.work()
    assert [turn.result(timeout=5) for turn in turns] == ["done a", "done b", "done c"]


def test_a_second_callback_of_a_tool_is_accepted_as_a_duplicate(desk: Office) -> None:
    """6.7: the tool that called back twice got an error, and failed."""
    plan.reset({"twice": [calls("search"), "done"]})
    turn = clerk.send("twice")
    (call,) = desk.until_suspended(turn)
    assert [turn.report(call.id, n) for n in range(3)] == [False, True, True]
    desk.work()
    assert desk.results(turn) == [0]
    assert turn.report(call.id, 4) is True
    desk.check(turn)


def test_ids_that_models_choose_are_no_keys(desk: Office) -> None:
    """6.8: a second agent whose model used `call_0` too got no command, and waited in vain."""
    plan.reset({text: [calls("search", "search"), "done"] for text in "ab"})
    turns = [clerk.at("ada").send("a"), clerk.at("bob").send("b")]
    turns += [clerk.at("ada", project="acme").send("a")]
    desk.work()
    assert [turn.result(timeout=5) for turn in turns] == ["done"] * 3
    assert len(searched) == 6
    desk.check(*turns)


def test_messages_are_taken_in_by_time_and_not_by_their_place_in_the_table(desk: Office) -> None:
    """6.9: the order of RETURNING was taken for the order of time."""
    plan.reset({"order": [calls("search", "measure", "search_twice"), "done"]})
    turn = clerk.send("order")
    waiting = desk.until_suspended(turn)
    now = desk.clock.now
    with desk.engine.database.write() as session:
        for age, call in enumerate(waiting):  # the last one written is the oldest
            _add(session, turn, call.id, age, now)
    desk.tick()
    assert desk.results(turn) == [2, 1, 0]


def _add(session: Any, turn: Any, call_id: str, age: int, now: int) -> None:
    agent = session.agent_turns.get(turn.project, turn.id).agent
    content = {"function_name": "search", "status": "success", "result": age}
    card = Card(f"{age:032}", "tool.report", "", turn.id, None, call_id, content, 0)
    session.cards.add(turn.project, turn.id, [card], now)
    session.agent_inbox.add(
        Message(
            *(turn.project, f"{age:032}", agent, MessageType.TOOL_RESULT, call_id, turn.id),
            *(0, {"card": f"{age:032}"}, InboxState.PENDING, 0, now - 100 * age, now - 100 * age),
        )
    )


def test_a_model_call_of_hours_is_never_ended_by_the_watchdog(desk: Office) -> None:
    """6.10: a reaper that looked at the age alone ended a live turn."""
    plan.reset({"think": ["done"]})
    turn = clerk.send("think")
    worker = desk.flow.worker("slow")
    run_id = desk.head(turn).run_id
    assert run_id is not None
    task = worker.claim(desk.engine.run(run_id), "call")
    for _ in range(12):
        desk.clock.advance(seconds=600)
        assert desk.engine.heartbeat(task)
        desk.flow.watchdog()
    assert worker.work_on(task)
    assert turn.result(timeout=5) == "done"
    assert (turn.info().recoveries, turn.info().epoch) == (0, 1)


def test_a_failing_turn_never_delivers_the_result_of_the_one_before(desk: Office) -> None:
    """6.11: with the memory of the agent, the last deliverable of the box was taken."""
    plan.reset({"good": ["gold"], "bad": [calls("search"), "never"]})
    good = clerk.at("ada").send("good")
    desk.work()
    bad = clerk.at("ada").send("bad")
    desk.until_suspended(bad)
    bad.stop("no")
    desk.work()
    first, second = good.info(), bad.info()
    assert first.output_box_id == second.output_box_id
    assert first.deliverable_card_id != second.deliverable_card_id
    assert "gold" not in str(desk.agents.outcome(second.project, second.id))
    desk.check(good, bad)


def test_a_run_learns_of_a_turn_that_ended_while_its_bell_was_lost(
    desk: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6.12: the event of a child was lost, and its parent waited to the deadline."""
    plan.reset({"asked": [submit(approve=True, reason="r")]})
    run = ask_judge.start("asked")
    with monkeypatch.context() as patch:
        patch.setattr(desk.engine, "advance", lambda *_, **__: [])
        patch.setattr(desk.engine.after_commit, "_following", lambda *_: [])
        desk.flow.settle()
    assert not run.info().is_final
    desk.work()
    assert run.result(timeout=5).approve is True
