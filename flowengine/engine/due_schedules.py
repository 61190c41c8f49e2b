"""Due schedules: taken by recovery, each in a transaction of its own.

The rows of the ticks, their runs and the next due time are one commit, guarded by the old due time:
of several processes that find the same schedule due, one starts its runs. A schedule that cannot be
read stops alone. One whose run is refused for a while is tried again, and delays no other.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict

from flowengine.engine.schedule_records import definition_of
from flowengine.engine.singletons import SingletonEnded
from flowengine.engine.tick_runs import TickEffects, TickRuns
from flowengine.errors import (
    AlreadyRunning,
    FlowengineError,
    StoreError,
    TooManyRuns,
    WorkflowClosed,
)
from flowengine.scheduling import Schedule, Timetable, decide
from flowengine.scheduling.states import ScheduleSignal, next_schedule_state
from flowengine.settings import Settings
from flowengine.store import Store
from flowengine.store.failures import is_unavailable
from flowengine.store.outbox import SCHEDULE_STOPPED, id_of_schedule
from flowengine.store.schedules import ScheduleRecord

log = logging.getLogger("flowengine")

_PAGE = 100
_SECONDS = 5.0  #: of one pass; other processes, and the next pass, take the rest
_PAUSE = 10_000  #: milliseconds until a refused start is tried again
_MAX_KEPT = 1_000
#: The definition, the program or the inputs cannot be read: trying again would not help.
_PERMANENT = (FlowengineError, ValueError, LookupError, TypeError)


class DueSchedules:
    """Takes due schedules of one database. Shared by all threads of a process."""

    def __init__(self, database: Store, runs: TickRuns, settings: Settings) -> None:
        self._database, self._runs, self._settings = database, runs, settings
        self._timetables: OrderedDict[tuple[str, str], Timetable] = OrderedDict()

    def take(self) -> int:
        """Take the schedules that are due; return how many. One query if there are none."""
        ends, taken = time.monotonic() + _SECONDS, 0
        while True:
            with self._database.read() as session:
                due = session.schedules.due(session.now(), _PAGE)
            here = sum(self._take(*each) for each in due)
            taken += here
            if len(due) < _PAGE or not here or time.monotonic() > ends:
                return taken

    def timetable(self, record: ScheduleRecord) -> Timetable:
        """Return the timetable of a schedule; raises InvalidSchedule."""
        key = record.name, record.definition
        found = self._timetables.get(key)
        if found is None:
            found = Timetable(record.name, Schedule.from_json(definition_of(record)))
            self._timetables[key] = found
            while len(self._timetables) > _MAX_KEPT:
                self._timetables.popitem(last=False)
        return found

    def _take(self, tenant: str, name: str, due: int) -> bool:
        """Take one schedule; False if another process has it, or it cannot be taken."""
        try:
            effects = self._commit(tenant, name, due)
        except (TooManyRuns, AlreadyRunning, SingletonEnded, WorkflowClosed) as problem:
            log.warning(
                "schedule %s cannot start its run: %s; it is tried again",
                name,
                problem,
                extra={"action": "schedule_delayed"},
            )
            self._postpone(tenant, name, due)
            return False
        except Exception as problem:
            if is_unavailable(problem):
                raise
            if isinstance(problem, _PERMANENT) and not isinstance(problem, StoreError):
                self._stop(tenant, name, due, problem)
            else:
                log.exception(
                    "schedule %s failed; it is tried again",
                    name,
                    extra={"action": "schedule_delayed"},
                )
                self._postpone(tenant, name, due)
            return False
        if effects is None:
            return False
        try:
            self._runs.finish(effects)
        except Exception as problem:  # the tick is committed; recovery finds the rest
            if is_unavailable(problem):
                raise
            log.warning(
                "workers were not woken for the run of schedule %s; recovery wakes them",
                name,
                exc_info=True,
                extra={"action": "wakeup_lost"},
            )
        return True

    def _commit(self, tenant: str, name: str, due: int) -> TickEffects | None:
        with self._database.write() as session:
            locked = session.schedules.lock_due_with_closing(tenant, name, due)
            if locked is None:
                return None  # taken by another process
            record, is_closed = locked
            now = session.now()
            timetable = self.timetable(record)
            assert record.next_tick is not None, "an active schedule has a next tick"
            running, waiting = self._runs.open_runs(session, record, timetable.schedule)
            decision = decide(
                timetable,
                record.next_tick,
                now,
                running=bool(running),
                waiting=bool(waiting),
                closed=is_closed,
            )
            effects = self._runs.apply(
                session, record, timetable.schedule, decision.actions, now, timetable=timetable
            )
            following = record._replace(next_tick=decision.next_tick, due=decision.due, updated=now)
            if decision.next_tick is None:
                state = next_schedule_state(record.state, ScheduleSignal.END)
                following = following._replace(state=state)
            session.schedules.move(record, following)
            return effects

    def _postpone(self, tenant: str, name: str, due: int) -> None:
        with self._database.write() as session:
            if record := session.schedules.lock_due(tenant, name, due):
                now = session.now()
                session.schedules.move(record, record._replace(due=now + _PAUSE, updated=now))

    def _stop(self, tenant: str, name: str, due: int, problem: Exception) -> None:
        """Stop a schedule that cannot be read; the others go on."""
        if isinstance(problem, FlowengineError):
            error = str(problem)
        else:
            error = f"{type(problem).__name__}: {problem}"
        with self._database.write() as session:
            record = session.schedules.lock_due(tenant, name, due)
            if record is None:
                return
            state = next_schedule_state(record.state, ScheduleSignal.STOP)
            stopped = record._replace(state=state, due=None, error=error, updated=session.now())
            session.schedules.move(record, stopped)
            rule = self._database.outbox_rule
            if rule is not None and "schedule_stopped" in rule.events:
                own = [id_of_schedule(tenant, name)]
                session.outbox.add_notices(own, SCHEDULE_STOPPED, rule.sinks, session.now())
        log.error(
            "schedule %s has stopped: %s; correct it, then `flowengine schedules resume %s`",
            name,
            error,
            name,
            exc_info=None if isinstance(problem, FlowengineError) else problem,
            extra={"action": "schedule_stopped"},
        )
