"""Reports of calls: in any order, once each, and the turn that goes on or ends after the last."""

from __future__ import annotations

import itertools

import pytest

from flowengine.turns.records import CardType, Reported, Rules
from flowengine.turns.states import HeadState, TaskStatus, WaitState
from tests.unit.turns.played_agent import asked, suspended

THREE = ("a", "b", "c")


@pytest.mark.parametrize("order", list(itertools.permutations(THREE)))
def test_a_turn_resumes_once_after_all_its_calls_in_any_order(order: tuple[str, ...]) -> None:
    agent = suspended(*(asked(name) for name in THREE))
    calls = {call.name: call for call in agent.open_calls()}
    for number, name in enumerate(order, 1):
        assert len(agent.model_calls) == 1
        agent.report(calls[name])
        assert agent.head.waiting == 3 - number
    assert (agent.head.status, agent.head.epoch) == (HeadState.RUNNING, 2)
    assert len(agent.model_calls) == 2
    assert agent.types().count(CardType.TOOL_RESULT) == 3


def test_a_sibling_neither_shortens_nor_lengthens_a_deadline() -> None:
    agent = suspended(asked("slow", timeout=90_000), asked("quick", timeout=1_000))
    slow, quick = agent.open_calls()
    agent.now += 500
    agent.report(quick)
    assert agent.head.resume_deadline == 1_000 + 90_000
    assert agent.calls[slow.id].deadline == 91_000


def test_a_second_report_of_a_call_changes_nothing() -> None:
    agent = suspended(asked("a"), asked("b"))
    first = agent.open_calls()[0]
    agent.report(first)
    assert agent.report(first, result="other") is None
    assert agent.head.waiting == 1


def test_of_a_timeout_and_a_result_the_first_one_counts() -> None:
    agent = suspended(asked("a"), asked("b"))
    a, b = agent.open_calls()
    agent.expire(a)
    assert agent.report(a) is None
    agent.report(b)
    assert agent.expire(b) is None
    assert (agent.calls[a.id].state, agent.calls[b.id].state) == (
        WaitState.EXPIRED,
        WaitState.APPLIED,
    )
    assert agent.canceled == [a.run_id]  # the run of a call that nobody waits for


def test_a_result_from_outside_ends_the_run_of_its_call() -> None:
    agent = suspended()
    (call,) = agent.open_calls()
    agent.report(call, is_early=True)
    assert agent.canceled == [call.run_id]


def test_a_call_that_has_failed_is_read_by_the_model() -> None:
    agent = suspended()
    (call,) = agent.open_calls()
    agent.report(call, TaskStatus.FAILED, error={"code": "Oops", "message": "no"}, result=None)
    assert agent.head.status == HeadState.RUNNING
    content = agent.cards[f"{'first':0>32}"][-1].content
    assert isinstance(content, dict)
    assert content["error"] == {"code": "Oops", "message": "no"}
    assert "result" not in content


def test_a_report_for_a_call_of_another_turn_or_of_none_is_stale() -> None:
    first = suspended()
    (old,) = first.open_calls()
    first.stop()
    first.dispatch("second")
    first.enter()
    first.say(asked())
    assert first.report(old) is None
    assert first.tell(Reported("unknown", TaskStatus.SUCCESS)) is None
    assert first.head.waiting == 1


def test_a_report_while_the_model_is_asked_is_stale() -> None:
    agent = suspended()
    (call,) = agent.open_calls()
    agent.report(call)
    assert agent.report(call) is None


def test_a_budget_that_is_spent_ends_the_turn_after_the_last_report() -> None:
    agent = suspended(rules=Rules(max_steps=1))
    (call,) = agent.open_calls()
    agent.report(call)
    assert agent.delivered()[0].code == "max_steps_reached"


# --- after_execution ---


def test_a_call_that_ends_the_turn_gives_its_result_as_the_deliverable() -> None:
    agent = suspended(asked("refund", after_execution="terminate"))
    (call,) = agent.open_calls()
    agent.report(call, result={"paid": 7})
    delivery, content = agent.delivered()
    assert delivery.status == TaskStatus.SUCCESS
    assert content == {"fields": [{"name": "paid", "value": 7}]}
    assert len(agent.model_calls) == 1


@pytest.mark.parametrize("last", ["refund", "search"])
def test_the_deliverable_is_of_the_call_that_ends_the_turn_whichever_comes_last(last: str) -> None:
    agent = suspended(asked("search"), asked("refund", after_execution="terminate"))
    calls = sorted(agent.open_calls(), key=lambda call: call.name == last)
    for call in calls:
        agent.report(call)
    assert agent.delivered()[1] == {"text": "of refund"}


@pytest.mark.parametrize(
    ("own", "override", "ends"),
    [
        ("suspend", "terminate", True),
        ("terminate", "suspend", False),
        ("terminate", "explode", True),
        ("suspend", "explode", False),
        ("suspend", "", False),
    ],
)
def test_an_override_of_a_result_counts_if_it_is_valid(own: str, override: str, ends: bool) -> None:
    agent = suspended(asked(after_execution=own))
    (call,) = agent.open_calls()
    agent.report(call, after_execution=override)
    assert (agent.head.status == HeadState.IDLE) is ends


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (("success", "success"), "success"),
        (("success", "failed"), "failed"),
        (("canceled", "success"), "canceled"),
        (("timeout", "timeout"), "timeout"),
        (("partial", "success"), "partial"),
    ],
)
def test_a_turn_ends_as_the_first_of_its_ending_calls_that_did_not_succeed(
    statuses: tuple[str, str], expected: str
) -> None:
    agent = suspended(*(asked(name, after_execution="terminate") for name in "ab"))
    for call, status in zip(agent.open_calls(), statuses, strict=True):
        agent.report(call, status)
    delivery, content = agent.delivered()
    assert delivery.status == expected
    assert delivery.code == ("" if expected == "success" else "tool_ended_turn")
    assert isinstance(content, dict)
    assert (content.get("kind") == "fallback_deliverable") is (expected != "success")


def test_a_failed_call_that_does_not_end_the_turn_leaves_its_status_alone() -> None:
    agent = suspended(asked("search"), asked("refund", after_execution="terminate"))
    search, refund = agent.open_calls()
    agent.report(search, TaskStatus.FAILED)
    agent.report(refund)
    assert agent.delivered()[0].status == TaskStatus.SUCCESS
