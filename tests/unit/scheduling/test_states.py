"""The table of states of a schedule: every transition, and no other."""

from __future__ import annotations

import itertools

import pytest

from flowengine.errors import IllegalTransition
from flowengine.scheduling.states import ScheduleSignal, ScheduleState, next_schedule_state

S = ScheduleSignal
LEGAL = {
    ("active", S.PAUSE): "paused",
    ("active", S.RESUME): "active",
    ("active", S.STOP): "stopped",
    ("active", S.END): "ended",
    ("active", S.PUBLISH): "active",
    ("paused", S.PAUSE): "paused",  # by another actor, for another reason
    ("paused", S.RESUME): "active",
    ("paused", S.PUBLISH): "paused",  # a deployment undoes no pause
    ("stopped", S.PAUSE): "paused",
    ("stopped", S.RESUME): "active",
    ("stopped", S.PUBLISH): "active",
    ("ended", S.PUBLISH): "active",
}


@pytest.mark.parametrize(("state", "signal"), [*itertools.product(ScheduleState.ALL, S)])
def test_a_schedule_has_these_transitions_and_no_other(state: str, signal: S) -> None:
    if (state, signal) in LEGAL:
        assert next_schedule_state(state, signal) == LEGAL[state, signal]
    else:
        with pytest.raises(IllegalTransition):
            next_schedule_state(state, signal)
