"""Dispatch, and the tries that enter: the newest one alone may act."""

from __future__ import annotations

import pytest

from flowengine.errors import IllegalTransition
from flowengine.evaluator.records import CLAIMS
from flowengine.turns import machine
from flowengine.turns.records import Turn
from flowengine.turns.states import HeadState
from tests.unit.turns.played_agent import PlayedAgent, asked, entered, suspended


def test_a_dispatch_raises_the_epoch_and_gives_the_head_its_turn() -> None:
    agent = PlayedAgent()
    changes = agent.dispatch()
    head, turn = agent.head, agent.turn
    assert turn is not None
    assert (head.status, head.epoch, head.turn_id) == (HeadState.DISPATCHED, 1, turn.id)
    assert (head.depth, head.context_box_id, head.output_box_id) == (3, "context", "output")
    assert changes.model_call is not None
    assert changes.model_call.run_id == head.run_id == machine.model_run_id(turn.id, 1)


def test_an_agent_with_a_turn_gets_no_second_one() -> None:
    for agent in (PlayedAgent(), entered(), suspended()):
        if agent.head.status == HeadState.IDLE:
            agent.dispatch()
        with pytest.raises(IllegalTransition):
            machine.dispatch(agent.head, Turn("another", "acme", "ada"))


def test_the_first_try_enters_under_the_epoch_of_the_dispatch() -> None:
    agent = entered()
    assert (agent.head.status, agent.head.epoch, agent.head.entered) == ("running", 1, CLAIMS)


def test_a_try_after_a_lost_one_enters_under_a_new_epoch() -> None:
    agent = entered()
    assert agent.enter(attempt=2)
    assert (agent.head.status, agent.head.epoch) == ("running", 2)


def test_a_late_first_try_cannot_displace_the_second() -> None:
    agent = entered()
    assert agent.enter(attempt=2)
    assert not agent.enter(attempt=1)
    assert agent.head.epoch == 2


def test_the_try_that_has_entered_changes_nothing_when_it_enters_again() -> None:
    agent = entered()
    before = agent.head
    assert agent.enter(attempt=1)
    assert agent.head == before


def test_a_second_claim_of_a_try_that_had_not_begun_is_no_recovery() -> None:
    agent = entered()
    assert agent.enter(attempt=1, claim=1)
    assert (agent.head.status, agent.head.epoch) == ("running", 1)
    assert not agent.enter(attempt=1), "the claim before was released"
    assert agent.enter(attempt=2)
    assert agent.head.epoch == 2


def test_a_second_try_that_enters_first_keeps_the_first_out() -> None:
    agent = PlayedAgent()
    agent.dispatch()
    assert agent.enter(attempt=2)
    assert agent.head.epoch == 1  # nobody had entered: nothing was lost
    assert not agent.enter(attempt=1)


def test_the_try_of_another_model_call_does_not_enter() -> None:
    agent = entered()
    assert machine.enter(agent.head, machine.model_run_id("another turn", 1), 9) is None


def test_no_try_enters_a_turn_that_waits_or_has_ended() -> None:
    agent = suspended()
    assert machine.enter(agent.head, agent.model_calls[0], 9) is None
    agent.stop()
    assert machine.enter(agent.head, agent.model_calls[0], 9) is None


def test_each_model_call_counts_its_own_tries() -> None:
    agent = suspended(asked())
    (call,) = agent.open_calls()
    agent.report(call)
    assert agent.head.entered == 0
    epoch = agent.head.epoch
    assert agent.enter(attempt=1)
    assert agent.head.epoch == epoch
