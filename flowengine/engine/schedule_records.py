"""Records of schedules: as readers see them, and how a change of the definition alters them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowengine.errors import InvalidSchedule
from flowengine.program.limits import clipped
from flowengine.scheduling import Schedule, Timetable
from flowengine.scheduling.states import ScheduleSignal, ScheduleState, next_schedule_state
from flowengine.store import codec
from flowengine.store.schedules import ScheduleRecord

_TIMES = ("cron", "every", "timezone", "start", "end", "jitter")


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as readers see it; times are milliseconds since 1970."""

    name: str
    workflow: str
    state: str  #: active, paused, stopped, ended
    definition: dict[str, Any]
    source: str  #: python, document, beat or engine
    next_tick: int | None
    due: int | None  #: with the jitter; None unless it is active
    actor: str | None  #: of the last pause or resumption
    reason: str | None
    error: str | None  #: why it was stopped
    tenant: str
    created: int
    updated: int

    @property
    def schedule(self) -> Schedule:
        """Its value; raises InvalidSchedule if it cannot be read."""
        return Schedule.from_json(self.definition)


def scheduled(record: ScheduleRecord, timetable: Timetable, now: int) -> ScheduleRecord:
    """Return an active schedule with its next tick and due time; one without a tick has ended."""
    tick = timetable.after(now) if record.next_tick is None else record.next_tick
    if tick is None:
        return record._replace(state=ScheduleState.ENDED, next_tick=None, due=None)
    return record._replace(next_tick=tick, due=timetable.due_time(tick))


def changed(before: ScheduleRecord, new: ScheduleRecord) -> ScheduleRecord:
    """Return a schedule with another definition or program; it stays paused."""
    state = next_schedule_state(before.state, ScheduleSignal.PUBLISH)
    merged = new._replace(
        state=state, actor=before.actor, reason=before.reason, created=before.created
    )
    old, now = info_of(before).definition, definition_of(new)
    if (
        before.next_tick is not None
        and old
        and all(old.get(name) == now.get(name) for name in _TIMES)
    ):
        merged = merged._replace(next_tick=before.next_tick)
        due = Timetable(new.name, Schedule.from_json(now)).due_time(before.next_tick)
        merged = merged._replace(due=due)
    elif new.next_tick is None:
        return merged._replace(state=ScheduleState.ENDED)
    return merged._replace(due=merged.due if state == ScheduleState.ACTIVE else None)


def info_of(record: ScheduleRecord) -> ScheduleInfo:
    about = {name: getattr(record, name) for name in ScheduleInfo.__dataclass_fields__}
    try:
        definition = definition_of(record)
    except InvalidSchedule:
        definition = {}  # one that cannot be read is listed, too
    return ScheduleInfo(**{**about, "definition": definition})


def definition_of(record: ScheduleRecord) -> dict[str, Any]:
    """Return the stored form of a schedule; raises InvalidSchedule."""
    try:
        found = codec.load(record.definition)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        problem = "it is not a JSON object; publish the schedule again"
        raise InvalidSchedule("the definition", clipped(record.definition, 100), problem)
    return found
