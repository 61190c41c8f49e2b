"""Stores the definitions of schedules, in the caller's transaction."""

from __future__ import annotations

from dataclasses import replace

from flowengine.engine.schedule_records import changed, scheduled
from flowengine.engine.tick_runs import TickRuns
from flowengine.scheduling import Schedule, Timetable
from flowengine.scheduling.states import ScheduleState
from flowengine.scheduling.tick_values import check_length
from flowengine.settings import Settings
from flowengine.store import Session, codec
from flowengine.store.schedules import ScheduleRecord


class ScheduleDefinitions:
    def __init__(self, runs: TickRuns, settings: Settings) -> None:
        self._runs, self._settings = runs, settings

    def text(self, name: str, schedule: Schedule) -> str:
        """Return the stored form of a schedule; raises TooLarge or NotJson for its inputs.

        Raises InvalidSchedule if its name is too long for the keys of its runs.
        """
        check_length(name)
        stored = replace(schedule, name="").as_json()
        most = self._settings.max_value_bytes
        codec.check_value(f"the inputs of schedule {name}", stored.get("inputs"), most)
        return codec.dump(stored)

    def checked(
        self,
        session: Session,
        workflow: str,
        digest: str,
        schedule: Schedule,
        *,
        tenant: str,
        source: str,
    ) -> ScheduleRecord:
        """Return the row of a schedule; raises InvalidInputs and others that `put` raises."""
        name, now = schedule.name or workflow, session.now()
        definition, schedule = self.text(name, schedule), replace(schedule, name="")
        timetable = Timetable(name, schedule)
        new = ScheduleRecord(
            tenant=tenant,
            name=name,
            workflow=workflow,
            program_hash=digest,
            definition=definition,
            source=source,
            state=ScheduleState.ACTIVE,
            next_tick=None,
            due=None,
            actor=None,
            reason=None,
            error=None,
            created=now,
            updated=now,
        )
        self._runs.request(session, new, schedule, timetable.after(now) or now)
        return scheduled(new, timetable, now)

    def put(
        self,
        session: Session,
        workflow: str,
        digest: str,
        schedule: Schedule,
        *,
        tenant: str,
        source: str,
    ) -> ScheduleRecord:
        """Store a schedule of a stored program; one of the same name is replaced.

        Raises InvalidInputs if the workflow does not take the inputs.
        """
        new = self.checked(session, workflow, digest, schedule, tenant=tenant, source=source)
        if session.schedules.add(new):
            return new
        before = session.schedules.get(tenant, new.name, lock=True)
        assert before is not None, "it was found by the insert"
        if before[2:6] != new[2:6]:  # workflow, program, definition and source
            before = changed(before, new)
            session.schedules.put(before)
        return before
