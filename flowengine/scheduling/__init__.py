"""Schedules: the times of their ticks, and what is done when one is due. Pure."""

from flowengine.scheduling.decisions import (
    Begin,
    Decision,
    Queue,
    Reason,
    Replace,
    Skip,
    decide,
    decide_trigger,
)
from flowengine.scheduling.schedule import MAX_NAME, Schedule
from flowengine.scheduling.tick_values import filled, shown_time, tick, tick_key, trigger_key
from flowengine.scheduling.timetable import Timetable

__all__ = [
    "MAX_NAME",
    "Begin",
    "Decision",
    "Queue",
    "Reason",
    "Replace",
    "Schedule",
    "Skip",
    "Timetable",
    "decide",
    "decide_trigger",
    "filled",
    "shown_time",
    "tick",
    "tick_key",
    "trigger_key",
]
