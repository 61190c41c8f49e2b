"""Ticks that an actor asks for: a trigger now, a backfill of past ticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any

from flowengine.actors import Actor
from flowengine.engine.backfill import MAX_TICKS, BackfillTick, tick_range
from flowengine.engine.control import named_actor
from flowengine.engine.due_schedules import DueSchedules
from flowengine.engine.stored_schedules import StoredSchedules
from flowengine.engine.tick_runs import ALLOW, BACKFILLED, TRIGGERED, TickEffects, TickRuns
from flowengine.errors import ScheduleRefused
from flowengine.program.limits import clipped
from flowengine.scheduling import Begin, Queue, Schedule, Skip, decide_trigger, tick_key
from flowengine.scheduling.decisions import Action
from flowengine.settings import Settings
from flowengine.store import Session, Store
from flowengine.store.schedules import ScheduleRecord

_EVER = 2**62
_OVERLAPS = "run {} is open, and its overlap allows no other; wait for its end, or cancel it"


class ManualTicks:
    """Starts runs of schedules outside their timetables."""

    def __init__(
        self,
        database: Store,
        stored: StoredSchedules,
        runs: TickRuns,
        due: DueSchedules,
        settings: Settings,
    ) -> None:
        self._database, self._stored, self._runs, self._due = database, stored, runs, due
        self._max_reason = settings.max_error_excerpt

    def trigger(
        self,
        name: str,
        *,
        actor: Actor | str = "",
        reason: str = "",
        inputs: Mapping[str, Any] | None = None,
        tenant: str | None = None,
    ) -> str:
        """Start a run now, outside the timetable, also if it is paused; return the run's id.

        `inputs` replace those of the schedule. Raises ScheduleRefused if its overlap allows no
        further run.
        """
        who = named_actor(actor)
        with self._database.write() as session:
            record = self._stored.record(session, name, tenant, lock=True)
            now = session.now()
            schedule = self._due.timetable(record).schedule
            schedule = replace(schedule, inputs={**schedule.inputs, **(inputs or {})})
            nominal = self._free_moment(session, record, now)
            running, waiting = self._runs.open_runs(session, record, schedule)
            action = decide_trigger(schedule, nominal, running=bool(running), waiting=bool(waiting))
            if isinstance(action, Skip):
                open_run = [*running, *waiting][0]
                raise ScheduleRefused(name, "be triggered", _OVERLAPS.format(open_run))
            effects = self._apply(session, record, schedule, action, TRIGGERED, who, reason)
        self._runs.finish(effects)
        return effects.ticks[0].run_id or ""

    def backfill(
        self,
        name: str,
        first: str | date | datetime,
        last: str | date | datetime,
        *,
        actor: Actor | str = "",
        reason: str = "",
        dry_run: bool = False,
        tenant: str | None = None,
    ) -> list[BackfillTick]:
        """Start the runs of past ticks from `first` to `last`; a date means its whole day.

        The runs have the keys of their ticks, so a tick that has run is not run again. Unless the
        schedule allows overlap, they run one after the other.
        """
        who = named_actor(actor)
        with self._database.read() as session:
            record = self._stored.record(session, name, tenant)
            timetable, now = self._due.timetable(record), session.now()
            ticks = tick_range(timetable, first, last, now)
            runs = self._runs_of(session, record, ticks)
        schedule, backfilled = timetable.schedule, []
        for nominal in ticks:
            run_id = runs.get(nominal)
            if run_id is None and not dry_run:
                kind = Begin if schedule.overlap == ALLOW else Queue
                with self._database.write() as session:
                    action = kind(nominal)
                    effects = self._apply(
                        session, record, schedule, action, BACKFILLED, who, reason
                    )
                self._runs.finish(effects)
                run_id = effects.ticks[0].run_id
            backfilled.append(BackfillTick(nominal, run_id, nominal in runs))
        return backfilled

    def _free_moment(self, session: Session, record: ScheduleRecord, now: int) -> int:
        """Return the time of a triggered tick: now, or the millisecond after others."""
        taken = session.schedules.ticks(record.tenant, record.name, now, _EVER, 1)
        return max([now, *(tick.nominal + 1 for tick in taken)])

    def _runs_of(
        self, session: Session, record: ScheduleRecord, ticks: Sequence[int]
    ) -> dict[int, str | None]:
        """Return the runs of ticks, by their key or, if they were purged, by their tick."""
        if not ticks:
            return {}
        rows = session.schedules.ticks(
            record.tenant, record.name, ticks[0], ticks[-1], 2 * MAX_TICKS
        )
        found = {tick.nominal: tick.run_id for tick in rows if tick.run_id is not None}
        for nominal in ticks:
            key = tick_key(record.name, nominal)
            run = session.run_keys.with_key(record.tenant, record.workflow, key)
            if run is not None:
                found[nominal] = run.id
        return {nominal: found[nominal] for nominal in ticks if nominal in found}

    def _apply(
        self,
        session: Session,
        record: ScheduleRecord,
        schedule: Schedule,
        action: Action,
        outcome: str,
        actor: str,
        reason: str,
    ) -> TickEffects:
        reason_text = clipped(reason, self._max_reason) or None
        return self._runs.apply(
            *(session, record, schedule, [action], session.now()),
            outcome=outcome,
            actor=actor,
            reason=reason_text,
        )
