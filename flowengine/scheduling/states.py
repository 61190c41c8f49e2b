"""The state machine of a stored schedule, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from flowengine.errors import IllegalTransition


class ScheduleState:
    """The state of a schedule."""

    ACTIVE = "active"  #: has a due time
    PAUSED = "paused"  #: by an actor; its next tick is kept
    STOPPED = "stopped"  #: its definition cannot be read, or its runs cannot be started
    ENDED = "ended"  #: no tick follows

    ALL = (ACTIVE, PAUSED, STOPPED, ENDED)


class ScheduleSignal(StrEnum):
    """The input of a schedule's state machine."""

    PAUSE = "be paused"
    RESUME = "be resumed"
    STOP = "be stopped"
    END = "end"
    PUBLISH = "be published"  #: with another definition or program


_ACTIVE, _PAUSED, _STOPPED, _ENDED = ScheduleState.ALL

TRANSITIONS: Mapping[str, Mapping[ScheduleSignal, str]] = {
    _ACTIVE: {
        ScheduleSignal.PAUSE: _PAUSED,
        ScheduleSignal.RESUME: _ACTIVE,
        ScheduleSignal.STOP: _STOPPED,
        ScheduleSignal.END: _ENDED,
        ScheduleSignal.PUBLISH: _ACTIVE,
    },
    _PAUSED: {
        ScheduleSignal.PAUSE: _PAUSED,
        ScheduleSignal.RESUME: _ACTIVE,
        ScheduleSignal.PUBLISH: _PAUSED,
    },
    _STOPPED: {
        ScheduleSignal.PAUSE: _PAUSED,
        ScheduleSignal.RESUME: _ACTIVE,
        ScheduleSignal.PUBLISH: _ACTIVE,
    },
    _ENDED: {ScheduleSignal.PUBLISH: _ACTIVE},
}


def next_schedule_state(state: str, signal: ScheduleSignal) -> str:
    """Return the state that follows; raises IllegalTransition."""
    following = TRANSITIONS[state].get(signal)
    if following is None:
        raise IllegalTransition("schedule", state, signal)
    return following
