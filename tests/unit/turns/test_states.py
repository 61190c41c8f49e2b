"""The tables of states: every transition of an agent and of a message, and no other."""

from __future__ import annotations

import itertools

import pytest

from flowengine.errors import IllegalTransition
from flowengine.turns.states import (
    HEAD_TRANSITIONS,
    INBOX_TRANSITIONS,
    RAISES_EPOCH,
    HeadSignal,
    HeadState,
    InboxState,
    check_inbox_transition,
    next_head_state,
)

S = HeadSignal
LEGAL = {
    ("idle", S.DISPATCH): "dispatched",
    ("dispatched", S.ENTER): "running",
    ("dispatched", S.FINISH): "idle",  # the model call failed before a worker entered
    ("dispatched", S.END): "idle",
    ("running", S.ENTER): "running",  # of the next model call
    ("running", S.RECOVER): "running",
    ("running", S.CONTINUE): "running",
    ("running", S.SUSPEND): "suspended",
    ("running", S.FINISH): "idle",
    ("running", S.END): "idle",
    ("suspended", S.REPORT): "suspended",
    ("suspended", S.RESUME): "running",
    ("suspended", S.FINISH): "idle",
    ("suspended", S.END): "idle",
}
#: As the protocol has them: from, to.
EDGES = {
    ("idle", "dispatched"),
    ("dispatched", "running"),
    ("running", "running"),
    ("running", "suspended"),
    ("suspended", "suspended"),
    ("suspended", "running"),
    ("dispatched", "idle"),
    ("running", "idle"),
    ("suspended", "idle"),
}


@pytest.mark.parametrize(("state", "signal"), list(LEGAL))
def test_each_signal_of_the_table_leads_to_its_state(state: str, signal: HeadSignal) -> None:
    assert next_head_state(state, signal) == LEGAL[state, signal]


@pytest.mark.parametrize(
    ("state", "signal"),
    [pair for pair in itertools.product(HeadState.ALL, HeadSignal) if pair not in LEGAL],
)
def test_no_other_transition_of_an_agent_can_be_made(state: str, signal: HeadSignal) -> None:
    with pytest.raises(IllegalTransition, match="agent"):
        next_head_state(state, signal)


def test_the_table_has_the_edges_of_the_protocol_and_no_others() -> None:
    made = {(state, to) for state, row in HEAD_TRANSITIONS.items() for to in row.values()}
    assert made == EDGES


def test_the_epoch_rises_with_a_dispatch_a_recovery_a_resume_and_an_end_from_outside() -> None:
    assert {S.DISPATCH, S.RECOVER, S.RESUME, S.END} == RAISES_EPOCH


MESSAGE_EDGES = {
    ("queued", "pending"),
    ("queued", "skipped"),
    ("queued", "error"),
    ("pending", "consumed"),
    ("pending", "deferred"),
    ("pending", "error"),
    ("deferred", "consumed"),
    ("deferred", "deferred"),
    ("deferred", "error"),
}


@pytest.mark.parametrize(
    ("state", "following"), list(itertools.product(INBOX_TRANSITIONS, repeat=2))
)
def test_a_message_goes_on_along_the_edges_of_the_protocol_alone(
    state: str, following: str
) -> None:
    if (state, following) in MESSAGE_EDGES:
        check_inbox_transition(state, following)
        return
    with pytest.raises(IllegalTransition, match="inbox message"):
        check_inbox_transition(state, following)


def test_a_message_in_a_final_state_never_changes() -> None:
    assert all(not INBOX_TRANSITIONS[state] for state in InboxState.FINAL)
