"""The state machine of a claimed task."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.errors import IllegalTransition
from flowengine.worker.claimed_tasks import CLAIM_TRANSITIONS, ClaimEvent, ClaimState, next_state

_S, _E = ClaimState, ClaimEvent
STATES = [value for name, value in vars(_S).items() if name.isupper() and isinstance(value, str)]
EVENTS = [value for name, value in vars(_E).items() if name.isupper()]
ALLOWED = {
    (_S.UNKNOWN, _E.CLAIM): _S.CLAIMED,
    (_S.UNKNOWN, _E.DISOWN): _S.DISOWNED,
    (_S.CLAIMED, _E.START): _S.STARTED,
    (_S.CLAIMED, _E.RELEASE): _S.RELEASED,
    (_S.CLAIMED, _E.PARK): _S.PARKED,
    (_S.CLAIMED, _E.DISOWN): _S.DISOWNED,
    (_S.STARTED, _E.FINISH): _S.FINISHED,
    (_S.STARTED, _E.SPOOL): _S.SPOOLED,
    (_S.STARTED, _E.RELEASE): _S.RELEASED,
    (_S.STARTED, _E.PARK): _S.PARKED,
    (_S.STARTED, _E.DISOWN): _S.DISOWNED,
    (_S.FINISHED, _E.REPORT): _S.REPORTED,
    (_S.FINISHED, _E.SPOOL): _S.SPOOLED,
    (_S.SPOOLED, _E.DELIVER): _S.REPORTED,
    (_S.SPOOLED, _E.DISOWN): _S.DISOWNED,
    (_S.RELEASED, _E.FINISH): _S.RELEASED,
    (_S.RELEASED, _E.SPOOL): _S.RELEASED,
    (_S.RELEASED, _E.RELEASE): _S.RELEASED,
    (_S.RELEASED, _E.DISOWN): _S.RELEASED,
    (_S.DISOWNED, _E.CLAIM): _S.DISOWNED,
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_each_state_takes_the_events_of_its_row_and_no_other(state: str, event: str) -> None:
    if (state, event) in ALLOWED:
        assert next_state("t", state, event) == ALLOWED[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"claimed task t is {state}"):
            next_state("t", state, event)


def test_every_state_has_a_row_and_can_be_reached() -> None:
    assert CLAIM_TRANSITIONS.keys() == set(STATES)
    reached = {after for row in CLAIM_TRANSITIONS.values() for after in row.values()}
    assert reached == set(STATES) - {_S.UNKNOWN}


@given(st.lists(st.sampled_from(EVENTS)))
def test_random_events_keep_the_invariants(events: list[str]) -> None:
    state, path = _S.UNKNOWN, [_S.UNKNOWN]
    for event in events:
        before = state
        try:
            state = next_state("t", state, event)
        except IllegalTransition:
            assert event not in CLAIM_TRANSITIONS[before]
            continue
        path.append(state)
        if before in _S.FINAL:
            assert state == before, "a final state is never left"
        if before in (_S.FINISHED, _S.SPOOLED, _S.REPORTED):
            assert state not in (_S.CLAIMED, _S.STARTED, _S.RELEASED, _S.PARKED)
        if before == _S.SPOOLED:
            assert event in (_E.DELIVER, _E.DISOWN)
    assert len({*path} & _S.FINAL) <= 1, "one final state"
