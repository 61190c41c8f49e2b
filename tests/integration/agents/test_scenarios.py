"""The scenarios of the protocol, each with wake-ups that are received, all lost, and all doubled.

The numbers are those of `docs/reference/agent-protocol.md`.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from flowengine.errors import AgentBusy, CallRefused, TurnFailed
from flowengine.models import Answer, StopReason, ToolCall
from flowengine.models.messages import Usage
from tests.integration.agents.clerks import (
    Office,
    Verdict,
    calls,
    clerk,
    judge,
    model,
    office,
    plan,
    searched,
    submit,
)


def test_s1_a_message_is_answered_by_one_turn(any_desk: Office) -> None:
    plan.reset({"hello": ["bonjour"]})
    turn = clerk.at("ada").send("hello")
    any_desk.work()
    assert turn.result(timeout=5) == "bonjour"
    info = turn.info()
    assert (info.status, info.steps, info.epoch, info.recoveries) == ("success", 1, 1, 0)
    assert plan.asked == [("hello", 0)]
    any_desk.check(turn)


def test_s2_three_messages_to_one_agent_are_answered_in_their_order(any_desk: Office) -> None:
    plan.reset({text: [calls("search"), f"done {text}"] for text in "abc"})
    turns = [clerk.at("ada").send(text) for text in "abc"]
    any_desk.work()
    assert [turn.result(timeout=5) for turn in turns] == ["done a", "done b", "done c"]
    assert plan.asked == [(text, step) for text in "abc" for step in (0, 1)]
    infos = [turn.info() for turn in turns]
    for before, after in itertools.pairwise(infos):  # no two at once
        assert before.finished is not None
        assert after.dispatched is not None
        assert before.finished <= after.dispatched
        assert before.epoch < after.epoch
    any_desk.check(*turns)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_s3_three_calls_resume_the_turn_once_in_any_order(
    any_desk: Office, order: tuple[int, ...]
) -> None:
    plan.reset({"three": [calls("search", "measure", "search_twice"), "done"]})
    turn = clerk.send("three")
    waiting = any_desk.until_suspended(turn)
    for place in order:
        turn.report(waiting[place].id, f"result {place}")
    any_desk.tick()
    any_desk.work()
    assert turn.result(timeout=5) == "done"
    assert plan.asked == [("three", 0), ("three", 1)]
    assert sorted(map(str, any_desk.results(turn))) == [f"result {n}" for n in range(3)]
    assert searched == []  # their own runs were ended
    any_desk.check(turn)


def test_s4_a_result_for_a_call_that_is_not_made_yet_is_refused(any_desk: Office) -> None:
    plan.reset({"early": [calls("search"), "done"]})
    turn = clerk.send("early")
    with pytest.raises(CallRefused, match="the turn has made no such call"):
        turn.report("f" * 32, "too early")
    any_desk.work()
    assert turn.result(timeout=5) == "done"
    assert any_desk.results(turn) == ["found kettle"]


def test_s5_a_second_result_of_a_call_is_a_duplicate(any_desk: Office) -> None:
    plan.reset({"twice": [calls("search", "measure"), "done"]})
    turn = clerk.send("twice")
    waiting = any_desk.until_suspended(turn)
    assert turn.report(waiting[0].id, "first") is False
    assert turn.report(waiting[0].id, "second") is True
    any_desk.work()
    assert turn.report(waiting[0].id, "third") is True
    assert "first" in any_desk.results(turn)
    assert len(any_desk.results(turn)) == 2
    any_desk.check(turn)


def test_s6_a_result_after_the_timeout_comes_too_late(any_desk: Office) -> None:
    plan.reset({"slow": [calls("hurried"), "done"]})
    turn = clerk.send("slow")
    (call,) = any_desk.until_suspended(turn)
    any_desk.tick(31)
    any_desk.tick()
    assert turn.report(call.id, "late") is True
    any_desk.work()
    assert turn.result(timeout=5) == "done"
    (error,) = any_desk.results(turn)
    assert isinstance(error, dict)
    assert error["code"] == "tool_timeout"
    assert searched == []  # its run was ended
    any_desk.check(turn)


@pytest.mark.parametrize(
    ("name", "query", "result"),
    [
        ("settle", "all", "paid all"),
        ("measure", "terminate", {"litres": 2}),
        ("measure", "explode", "went on"),
        ("measure", "suspend", "went on"),
    ],
)
def test_s7_a_call_ends_the_turn_if_it_or_its_result_says_so(
    any_desk: Office, name: str, query: str, result: Any
) -> None:
    plan.reset({"end": [calls(name, query=query), "went on"]})
    turn = clerk.send("end")
    any_desk.work()
    assert any_desk.agents.outcome(turn.project, turn.id) == (turn.info(), result)
    any_desk.check(turn)


def test_s7_the_ending_call_delivers_even_if_a_sibling_reports_last(any_desk: Office) -> None:
    plan.reset({"end": [calls("settle", "search"), "went on"]})
    turn = clerk.send("end")
    waiting = {call.name: call for call in any_desk.until_suspended(turn)}
    turn.report(waiting["settle"].id, "paid")
    any_desk.tick()
    turn.report(waiting["search"].id, "found")
    any_desk.work()
    assert turn.result(timeout=5) == "paid"
    any_desk.check(turn)


def test_s8_a_submission_is_alone_complete_and_once(any_desk: Office) -> None:
    both = Answer(
        (
            ToolCall("call_0", "submit_result", {"approve": True, "reason": "r"}),
            ToolCall("call_1", "search", {}),
        ),
        StopReason.TOOL_CALLS,
        Usage(1, 1),
        "scripted",
    )
    plan.reset({"judge": [both, submit(approve=True), submit(approve="x", reason="r"), "so"]})
    turn = judge.send("judge")
    any_desk.work()
    with pytest.raises(TurnFailed, match="max_steps_reached"):
        turn.result(timeout=5)
    problems = [str(result) for result in any_desk.results(turn)]
    assert len(problems) == 4
    assert all("must be the only call" in problem for problem in problems[:2])
    assert "these fields are missing: reason" in problems[2]
    assert "approve" in problems[3]
    assert searched == []
    any_desk.check(turn)


def test_s8_a_submission_is_the_result_of_the_turn(any_desk: Office) -> None:
    plan.reset({"judge": ["I think so", submit(reason="it leaks", approve=True)]})
    turn = judge.send("judge")
    any_desk.work()
    assert turn.result(timeout=5) == Verdict(approve=True, reason="it leaks")
    any_desk.check(turn)


@pytest.mark.parametrize("state", ["dispatched", "running", "suspended"])
def test_s9_a_turn_is_stopped_in_each_state(any_desk: Office, state: str) -> None:
    plan.reset({"stop": [calls("search"), "too late"], "next": ["fine"]})
    turn = clerk.at("ada").send("stop")
    any_desk.tick()
    claimed = None
    if state == "running":
        worker = any_desk.flow.worker("slow")
        run_id = any_desk.head(turn).run_id
        assert run_id is not None
        claimed = worker.claim(any_desk.engine.run(run_id), "call")
        _enter(any_desk, turn, run_id)
    if state == "suspended":
        any_desk.until_suspended(turn)
    head = any_desk.head(turn)
    assert head.status == state
    following = clerk.at("ada").send("next")
    turn.stop("the customer left", by="eva")
    any_desk.tick()
    any_desk.work()
    if claimed is not None:
        assert worker.work_on(claimed) is False  # its answer comes too late
    info = turn.info()
    assert (info.status, info.error_code, info.error) == (
        "canceled",
        "stopped",
        "the customer left",
    )
    assert following.result(timeout=5) == "fine"
    assert any_desk.head(turn).epoch > head.epoch + 1
    assert searched == []
    any_desk.check(turn, following)


def _enter(desk: Office, turn: Any, run_id: str) -> None:
    from flowengine.agents.entries import CallTry, enter

    enter(desk.engine, desk.agents, CallTry("", desk.head(turn).agent, turn.id, run_id, 1))


def test_s10_a_turn_that_is_stopped_in_the_queue_never_runs(any_desk: Office) -> None:
    plan.reset({"first": ["one"], "never": ["two"], "third": ["three"]})
    first, never, third = (clerk.at("ada").send(text) for text in plan.steps)
    never.stop("not needed")
    any_desk.work()
    assert [first.result(timeout=5), third.result(timeout=5)] == ["one", "three"]
    assert [text for text, _ in plan.asked] == ["first", "third"]
    with pytest.raises(TurnFailed, match=r"canceled \(stopped\): not needed"):
        never.result(timeout=5)
    assert ("turn", "skipped") in any_desk.inbox(never)
    any_desk.check(first, never, third)


def test_s12_a_turn_that_waits_for_a_worker_for_an_hour_runs_once(any_desk: Office) -> None:
    plan.reset({"patient": ["done"]})
    turn = clerk.at("ada").send("patient")
    for _ in range(12):
        any_desk.tick(300)
    assert any_desk.head(turn).status == "dispatched"
    any_desk.work()
    assert turn.result(timeout=5) == "done"
    assert plan.asked == [("patient", 0)]
    any_desk.check(turn)


def test_s17_a_busy_agent_refuses_if_it_is_asked_to(any_desk: Office) -> None:
    plan.reset({"long": [calls("search"), "done"], "next": ["fine"]})
    turn = clerk.at("ada").send("long")
    any_desk.until_suspended(turn)
    with pytest.raises(AgentBusy, match=f"agent 'ada' works on turn {turn.id}") as refused:
        clerk.at("ada").options(when_busy="refuse").send("next")
    assert refused.value.code == "busy"
    any_desk.work()
    following = clerk.at("ada").options(when_busy="refuse").send("next")
    any_desk.work()
    assert following.result(timeout=5) == "fine"
    any_desk.check(turn, following)


def test_s17_a_message_that_does_not_wait_gets_the_agent_in_its_own_commit(
    any_desk: Office,
) -> None:
    """Without a bell the turn is dispatched all the same, so a second one cannot get in between."""
    plan.reset({"first": ["one"], "second": ["two"]})
    first = clerk.at("ada").options(when_busy="refuse").send("first")
    assert any_desk.head(first).status == "dispatched"
    assert (any_desk.head(first).turn_id, any_desk.head(first).epoch) == (first.id, 1)
    assert any_desk.inbox(first) == [("ui_action", "pending")]
    with pytest.raises(AgentBusy):
        clerk.at("ada").options(when_busy="refuse").send("second")
    any_desk.work()
    assert first.result(timeout=5) == "one"
    any_desk.check(first)


def test_s17_a_message_in_the_queue_makes_the_agent_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    with office("sqlite://", "lost") as desk:
        # As if the agent had been busy, and its process had died when its turn ended.
        monkeypatch.setattr(desk.agents._commits, "lease", lambda *_: None)
        waiting = clerk.at("ada").send("first")
        assert desk.head(waiting).status == "idle"
        with pytest.raises(AgentBusy, match=waiting.id):
            clerk.at("ada").options(when_busy="refuse").send("second")


def test_s17_a_newer_message_interrupts_if_it_is_asked_to(any_desk: Office) -> None:
    plan.reset({"long": [calls("search"), "done"], "urgent": ["at once"]})
    turn = clerk.at("ada").send("long")
    any_desk.until_suspended(turn)
    urgent = clerk.at("ada").options(when_busy="interrupt").send("urgent")
    any_desk.work()
    assert urgent.result(timeout=5) == "at once"
    assert (turn.info().status, turn.info().error_code) == ("canceled", "interrupted")
    any_desk.check(turn, urgent)


def test_s18_a_turn_reads_its_own_boxes_and_leaves_its_context_alone(any_desk: Office) -> None:
    plan.reset({"mine": [calls("search"), "done"], "other": ["else"], "again": ["more"]})
    mine, other = clerk.at("ada").send("mine"), clerk.at("bob").send("other")
    before = any_desk.context(mine)
    any_desk.work()
    again = clerk.at("ada").send("again")
    any_desk.work()
    assert any_desk.context(mine) == before
    (read,) = [r for r in model.requests if "again" in str(r.messages[-1])]
    shown = str(read.messages)
    assert "mine" in shown  # the memory of the agent
    assert "else" not in shown  # nothing of another
    assert [m.role for m in read.messages] == [
        *("system", "user", "assistant", "tool", "assistant", "user"),
    ]
    boxes = {turn.info().output_box_id for turn in (mine, again)}
    assert len(boxes) == 1
    assert other.info().output_box_id not in boxes
    any_desk.check(mine, other, again)


def test_s19_two_watchdogs_are_as_good_as_one(any_desk: Office) -> None:
    plan.reset({"slow": [calls("hurried", "search"), "done"]})
    turn = clerk.send("slow")
    any_desk.until_suspended(turn)
    any_desk.clock.advance(seconds=31)
    for _ in range(3):
        any_desk.flow.watchdog()
        any_desk.flow.watchdog()
    any_desk.work()
    assert turn.result(timeout=5) == "done"
    assert plan.asked == [("slow", 0), ("slow", 1)]
    any_desk.check(turn)


def test_s20_ids_that_the_model_repeats_do_not_mix_calls(any_desk: Office) -> None:
    twice = [calls("search", "search"), calls("search", query="more"), "done"]
    plan.reset({"a": twice, "b": twice})
    turns = [clerk.at("ada").send("a"), clerk.at("bob").send("b"), clerk.at("ada").send("b")]
    any_desk.work()
    for turn in turns:
        assert turn.result(timeout=5) == "done"
        assert any_desk.results(turn) == ["found kettle", "found kettle", "found more"]
    any_desk.check(*turns)


def test_a_repeated_message_is_the_same_turn(any_desk: Office) -> None:
    plan.reset({"once": ["done"]})
    ada = clerk.at("ada").options(key="mail-17")
    first, second = ada.send("once"), ada.send("once")
    any_desk.work()
    third = ada.send("once")
    assert first.id == second.id == third.id
    assert [t.duplicate for t in (first, second, third)] == [False, True, True]
    assert plan.asked == [("once", 0)]
    any_desk.check(first)


def test_the_same_names_in_two_projects_never_meet(any_desk: Office) -> None:
    plan.reset({"a": [calls("search"), "of a"], "b": [calls("search"), "of b"]})
    acme = clerk.at("ada", project="acme").options(key="mail-17").send("a")
    other = clerk.at("ada", project="other").options(key="mail-17").send("b")
    assert acme.id != other.id
    acme_call = any_desk.until_suspended(acme)[0]
    any_desk.until_suspended(other)
    with pytest.raises(LookupError):
        any_desk.agents.stop("other", acme.id)
    with pytest.raises(LookupError):
        any_desk.agents.report("other", acme.id, acme_call.id, "foreign")
    with pytest.raises(CallRefused):
        other.report(acme_call.id, "foreign")
    any_desk.work()
    assert (acme.result(timeout=5), other.result(timeout=5)) == ("of a", "of b")
    any_desk.check(acme, other)
