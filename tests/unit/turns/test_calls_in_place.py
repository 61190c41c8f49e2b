"""Model calls that the try of the call before makes, and answers that were recorded before."""

from __future__ import annotations

import pytest

from flowengine.turns.machine import step_id_of
from flowengine.turns.records import AskedCall, CardType, Rules
from flowengine.turns.states import HeadState, TaskStatus
from tests.unit.turns.played_agent import PlayedAgent, asked, entered


def _made() -> AskedCall:
    """A call that has its result."""
    return asked(is_made_in_place=True, result="found")


def _go_on(agent: PlayedAgent, *calls: AskedCall, **options: object) -> None:
    agent.say(*(calls or (_made(),)), is_followed_in_place=True, **options)


def test_the_next_model_call_belongs_to_the_run_of_the_one_before() -> None:
    agent = entered()
    before = agent.head.copied()
    _go_on(agent)
    first, second = agent.model_calls
    assert first == second == agent.head.run_id
    # The try has entered it already, under the same epoch.
    assert agent.head.entered == before.entered > 0
    assert (agent.head.status, agent.head.epoch) == (HeadState.RUNNING, before.epoch)
    assert agent.types() == [CardType.THOUGHT, CardType.TOOL_CALL, CardType.TOOL_RESULT]


def test_each_model_call_in_place_is_a_step_of_the_turn() -> None:
    agent = entered()
    _go_on(agent)
    _go_on(agent)
    agent.say(text="done")
    assert agent.turn is not None
    ids = [step_id_of(agent.turn.id, number) for number in (1, 2, 3)]
    assert agent.steps == dict.fromkeys(ids, "completed")
    phases = [(e.body["step_id"], e.body["phase"]) for e in agent.events if e.kind == "step"]
    assert phases == [(one, phase) for one in ids for phase in ("started", "completed")]
    assert agent.delivered()[0].status == TaskStatus.SUCCESS


def test_a_try_after_a_lost_one_enters_the_present_model_call_under_a_new_epoch() -> None:
    agent = entered()
    _go_on(agent)
    epoch = agent.head.epoch
    assert agent.enter(attempt=2)
    assert agent.head.epoch == epoch + 1
    agent.say(text="done", number=2)
    assert agent.delivered()[0].status == TaskStatus.SUCCESS


def test_the_call_behind_one_in_place_has_a_run_of_its_own() -> None:
    agent = entered()
    _go_on(agent)
    agent.say(_made(), number=2)
    assert len(set(agent.model_calls)) == 2
    assert (agent.head.run_id, agent.head.entered) == (agent.model_calls[-1], 0)


def test_a_call_that_has_to_be_waited_for_is_not_followed_in_place() -> None:
    agent = entered()
    _go_on(agent, _made(), asked("refund"))
    assert (agent.head.status, agent.head.run_id) == (HeadState.SUSPENDED, None)
    assert len(agent.model_calls) == 1


def test_a_budget_ends_a_turn_whose_calls_are_made_in_place() -> None:
    agent = entered(Rules(max_steps=2))
    _go_on(agent)
    _go_on(agent)
    delivery, _ = agent.delivered()
    assert (delivery.status, delivery.code) == (TaskStatus.FAILED, "max_steps_reached")


@pytest.mark.parametrize("answers", [1, 2])
def test_an_answer_that_was_recorded_before_is_not_recorded_again(answers: int) -> None:
    """Its try lost the connection while it was recorded, so the try reported it."""
    agent = entered()
    for _ in range(answers):
        _go_on(agent)
    cards = agent.types()
    agent.say(_made(), text="an earlier answer", number=answers)
    assert agent.types() == cards
    # The run has ended, so the model call that it should have made is made by another one.
    assert agent.turn is not None
    assert agent.turn.steps == answers + 2
    assert agent.steps[step_id_of(agent.turn.id, answers + 1)] == "failed"
    assert (agent.head.run_id, agent.head.entered) == (agent.model_calls[-1], 0)
    assert agent.enter()
    agent.say(text="done", number=answers + 2)
    assert agent.delivered()[0].status == TaskStatus.SUCCESS


def test_an_answer_without_a_number_is_the_one_that_is_waited_for() -> None:
    """A person has completed the model call by hand."""
    agent = entered()
    _go_on(agent)
    agent.say(text="by hand")
    assert agent.delivered()[1] == {"text": "by hand"}
