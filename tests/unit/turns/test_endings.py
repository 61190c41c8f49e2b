"""The end of a turn: stopped in each state, failed, and once only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowengine.turns.records import CardType, Head, ModelAnswered, ModelFailed, Stopped
from flowengine.turns.states import HeadState, TaskStatus, WaitState
from tests.unit.turns.played_agent import PlayedAgent, asked, entered, suspended


def dispatched() -> PlayedAgent:
    agent = PlayedAgent()
    agent.dispatch()
    return agent


ACTIVE: list[Callable[[], PlayedAgent]] = [dispatched, entered, suspended]


@pytest.mark.parametrize("make", ACTIVE)
def test_a_stop_ends_the_turn_in_each_state_under_a_new_epoch(
    make: Callable[[], PlayedAgent],
) -> None:
    agent = make()
    epoch, run_id = agent.head.epoch, agent.head.run_id
    open_runs = [call.run_id for call in agent.open_calls()]
    agent.stop()
    delivery, content = agent.delivered()
    assert (delivery.status, delivery.code) == (TaskStatus.CANCELED, "stopped")
    assert isinstance(content, dict)
    assert content["kind"] == "fallback_deliverable"
    assert agent.head.epoch == epoch + 1
    assert agent.canceled == (open_runs or [run_id])
    assert CardType.ERROR in agent.types()


@pytest.mark.parametrize("make", ACTIVE)
def test_an_idle_head_keeps_nothing_of_the_turn_but_its_memory(
    make: Callable[[], PlayedAgent],
) -> None:
    agent = make()
    agent.stop()
    head = agent.head
    assert head == Head("acme", "ada", epoch=head.epoch, memory_box_id="output")


def test_a_stop_answers_the_calls_that_are_open() -> None:
    """Otherwise the next turn would read a call without a result, which providers refuse."""
    agent = suspended(asked("a"), asked("b"))
    a, b = agent.open_calls()
    agent.report(a)
    agent.stop()
    assert agent.calls[b.id].state == WaitState.DROPPED
    cards = agent.cards[f"{'first':0>32}"]
    assert [c.tool_call_id for c in cards if c.type == CardType.TOOL_RESULT] == [a.id, b.id]
    assert [c.type for c in cards[-3:]] == ["tool.result", "agent.error", "task.deliverable"]


def test_a_step_that_a_stop_interrupts_has_ended() -> None:
    agent = entered()
    changes = agent.stop()
    assert changes is not None
    assert [step.status for step in changes.steps] == ["failed"]


def test_a_second_stop_and_everything_after_the_end_is_stale() -> None:
    agent = suspended()
    (call,) = agent.open_calls()
    run_id = agent.model_calls[0]
    agent.stop()
    assert agent.stop() is None
    assert agent.report(call) is None
    assert agent.expire(call) is None
    assert agent.tell(ModelAnswered(run_id, "late", {})) is None
    assert agent.tell(ModelFailed(run_id, "model_failed", "late")) is None
    assert len(agent.deliveries[f"{'first':0>32}"]) == 1


def test_triggers_of_an_ended_turn_do_not_touch_the_next_one() -> None:
    agent = suspended()
    first = agent.turn
    agent.stop()
    agent.dispatch("second")
    agent.enter()
    before = agent.head
    assert agent.tell(Stopped("stopped", "late"), first) is None
    assert agent.tell(ModelAnswered(agent.model_calls[0], "late", {})) is None
    assert agent.head is before


def test_an_answer_of_an_earlier_model_call_is_stale() -> None:
    agent = suspended()
    (call,) = agent.open_calls()
    agent.report(call)
    assert agent.say(text="late", run_id=agent.model_calls[0]) is None


@pytest.mark.parametrize("make", [dispatched, entered])
@pytest.mark.parametrize("status", [TaskStatus.FAILED, TaskStatus.CANCELED])
def test_a_model_call_that_failed_ends_the_turn(
    make: Callable[[], PlayedAgent], status: str
) -> None:
    agent = make()
    agent.fail("worker_lost", status)
    delivery, _ = agent.delivered()
    assert (delivery.status, delivery.code, delivery.message) == (status, "worker_lost", "away")
    assert agent.head.status == HeadState.IDLE
    assert agent.canceled == []  # it has ended by itself


def test_each_end_has_one_event_that_points_to_the_deliverable() -> None:
    agent = suspended()
    agent.stop()
    (task,) = [event for event in agent.events if event.kind == "task"]
    delivery, _ = agent.delivered()
    assert task.body["deliverable_card_id"] == delivery.card_id
    assert (task.body["status"], task.body["output_box_id"]) == ("canceled", "output")
    assert task.body["error_code"] == "stopped"
