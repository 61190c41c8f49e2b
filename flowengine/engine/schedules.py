"""Schedules of one database: `engine.schedules`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from flowengine.actors import Actor
from flowengine.engine.control import named_actor
from flowengine.engine.due_schedules import DueSchedules
from flowengine.engine.manual_ticks import ManualTicks
from flowengine.engine.program_cache import ProgramCache
from flowengine.engine.schedule_definitions import ScheduleDefinitions
from flowengine.engine.schedule_records import ScheduleInfo, info_of, scheduled
from flowengine.engine.stored_schedules import StoredSchedules
from flowengine.engine.tick_runs import TickRuns
from flowengine.errors import IllegalTransition, ScheduleRefused
from flowengine.program import Program
from flowengine.program.limits import clipped
from flowengine.scheduling import Schedule
from flowengine.scheduling.states import ScheduleSignal, ScheduleState, next_schedule_state
from flowengine.settings import Settings
from flowengine.store import Store
from flowengine.store.schedules import TickRecord

_PAGE = 1_000  #: rows that one statement reads
_EVER = 2**62


class Schedules:
    """Reads and changes the schedules of one database."""

    def __init__(
        self,
        database: Store,
        programs: ProgramCache,
        runs: TickRuns,
        due: DueSchedules,
        settings: Settings,
    ) -> None:
        self._database, self._programs, self._runs, self._due = database, programs, runs, due
        self._settings, self._stored = settings, StoredSchedules(settings.tenant)
        self._definitions = ScheduleDefinitions(runs, settings)
        manual = ManualTicks(database, self._stored, runs, due, settings)
        self.trigger = manual.trigger
        self.backfill = manual.backfill
        self.take_due = due.take

    # --- reading ---

    def get(self, name: str, *, tenant: str | None = None) -> ScheduleInfo:
        """Return a schedule; raises UnknownSchedule."""
        with self._database.read() as session:
            return info_of(self._stored.record(session, name, tenant))

    def ticks(self, name: str, *, most: int = 20, tenant: str | None = None) -> list[TickRecord]:
        """Return the outcomes of the last ticks, the newest first."""
        with self._database.read() as session:
            record = self._stored.record(session, name, tenant)
            return session.schedules.ticks(record.tenant, record.name, -_EVER, _EVER, most)

    # --- changes ---

    def put(
        self,
        program: Program | Mapping[str, Any],
        workflow: str,
        schedule: Schedule,
        *,
        tenant: str | None = None,
        source: str = "engine",
    ) -> ScheduleInfo:
        """Store a schedule of a workflow; one of the same name is replaced, and stays paused.

        Its next tick is kept unless its times have changed. Raises InvalidInputs if the workflow
        does not take the inputs.
        """
        digest, text, plan = self._programs.prepare(program)
        facet = plan.workflow(workflow)
        self._definitions.text(schedule.name or facet.name, schedule)
        with self._database.write() as session:
            session.payloads.save_program(digest, text, session.now())
            own = self._stored.tenant(tenant)
            return info_of(
                self._definitions.put(
                    session, facet.name, digest, schedule, tenant=own, source=source
                )
            )

    def check(
        self,
        program: Program | Mapping[str, Any],
        workflow: str,
        schedule: Schedule,
        *,
        tenant: str | None = None,
    ) -> None:
        """Raise what `put` would raise, and store nothing."""
        digest, _text, plan = self._programs.prepare(program)
        facet, own = plan.workflow(workflow), self._stored.tenant(tenant)
        with self._database.read() as session:
            self._definitions.checked(
                session, facet.name, digest, schedule, tenant=own, source="engine"
            )

    def pause(
        self, name: str, *, actor: Actor | str = "", reason: str = "", tenant: str | None = None
    ) -> ScheduleInfo:
        """Start no more runs until the schedule is resumed; open runs go on."""
        return self._signal(name, ScheduleSignal.PAUSE, actor, reason, tenant)

    def resume(
        self, name: str, *, actor: Actor | str = "", reason: str = "", tenant: str | None = None
    ) -> ScheduleInfo:
        """Start runs again; `catch_up` decides about the ticks that were missed."""
        return self._signal(name, ScheduleSignal.RESUME, actor, reason, tenant)

    def remove(self, name: str, *, tenant: str | None = None) -> None:
        """Remove a schedule and its ticks; its runs stay.

        A worker that has it in its code publishes it again when it starts.
        """
        with self._database.write() as session:
            record = self._stored.record(session, name, tenant)
            session.schedules.remove(record.tenant, record.name)

    def _signal(
        self,
        name: str,
        signal: ScheduleSignal,
        actor: Actor | str,
        reason: str,
        tenant: str | None,
    ) -> ScheduleInfo:
        who = named_actor(actor)
        with self._database.write() as session:
            record = self._stored.record(session, name, tenant, lock=True)
            try:
                state = next_schedule_state(record.state, signal)
            except IllegalTransition:
                problem = f"it is {record.state}; publish it with later ticks"
                raise ScheduleRefused(name, signal.value, problem) from None
            now = session.now()
            after = record._replace(
                state=state,
                due=None,
                actor=who,
                reason=clipped(reason, self._settings.max_error_excerpt) or None,
                updated=now,
            )
            if state == ScheduleState.ACTIVE:
                timetable = self._due.timetable(record)  # raises if it still cannot be read
                tick = record.next_tick
                self._runs.request(
                    session, record, timetable.schedule, now if tick is None else tick
                )
                after = scheduled(after._replace(error=None), timetable, now)
            session.schedules.put(after)
            about: dict[str, Any] = {"actor": who, "reason": reason, "now": now}
            options = {"workflow": record.workflow}
            session.actions.add(
                uuid.uuid4().hex, signal.value, subject=name, options=options, **about
            )
            return info_of(after)

    def list(self, *, tenant: str | None = None) -> list[ScheduleInfo]:
        """Return all schedules of a tenant by name."""
        own, found = self._stored.tenant(tenant), list[ScheduleInfo]()
        while True:
            after = found[-1].name if found else ""
            with self._database.read() as session:
                page = session.schedules.page(own, after, _PAGE)
            found += [info_of(record) for record in page]
            if len(page) < _PAGE:
                return found
