"""The runs of ticks: inserted in the transaction of the tick, finished after its commit."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flowengine.actors import Actor, ActorKind
from flowengine.engine import run_places
from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.program_cache import ProgramCache
from flowengine.engine.staging import CommitEffects
from flowengine.engine.start_request import StartRequest, start_request
from flowengine.engine.starter import Starter
from flowengine.evaluator.actions import ActionKind
from flowengine.scheduling import (
    Begin,
    Queue,
    Replace,
    Schedule,
    Skip,
    Timetable,
    filled,
    shown_time,
    tick_key,
    trigger_key,
)
from flowengine.scheduling.decisions import Action, continues
from flowengine.settings import Settings
from flowengine.store import Session
from flowengine.store.schedules import ScheduleRecord, TickRecord

log = logging.getLogger("flowengine")

STARTED, QUEUED, SKIPPED = "started", "queued", "skipped"
TRIGGERED, BACKFILLED = "triggered", "backfilled"
ALLOW = "allow"


@dataclass
class TickEffects:
    """The rows that the transaction of a tick has written, for the time after its commit."""

    requests: list[StartRequest] = field(default_factory=list)
    commits: list[CommitEffects] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    queues: list[tuple[str, str, str]] = field(default_factory=list)
    ticks: list[TickRecord] = field(default_factory=list)


class TickRuns:
    """Starts runs for ticks of schedules."""

    def __init__(
        self,
        programs: ProgramCache,
        starter: Starter,
        after_commit: AfterCommit,
        settings: Settings,
    ) -> None:
        self._programs, self._starter, self._settings = programs, starter, settings
        self._after_commit = after_commit

    def request(
        self,
        session: Session,
        record: ScheduleRecord,
        schedule: Schedule,
        nominal: int,
        *,
        triggered: bool = False,
    ) -> StartRequest:
        """Return the start of a tick's run, with checked inputs."""
        key = (trigger_key if triggered else tick_key)(record.name, nominal)
        options: dict[str, Any] = {"key": key, "tenant": record.tenant}
        prepared = self._programs.stored(session, record.program_hash)
        if schedule.overlap != ALLOW and prepared[2].workflow(record.workflow).runs is None:
            options["singleton"] = singleton_key(record.name)
        inputs = filled(schedule.inputs, record.name, nominal, schedule.zone)
        return start_request(prepared, record.workflow, inputs, self._settings, **options)

    def open_runs(
        self, session: Session, record: ScheduleRecord, schedule: Schedule
    ) -> tuple[list[str], list[str]]:
        """Return the open run of a schedule, and those that wait for its end.

        If the workflow limits its open runs, they are those of all who start it; none while there
        is a place.
        """
        if schedule.overlap == ALLOW:
            return [], []  # nobody asks
        keys, where = session.run_keys, (record.tenant, record.workflow)
        limit = self._programs.plan(session, record.program_hash).workflow(record.workflow).runs
        if limit is None:
            key = singleton_key(record.name)
            held = keys.with_singleton(*where, key)
            return [held] if held else [], keys.queued(*where, key)
        placed = list(keys.singletons_like(*where, run_places.PLACES).values())
        waiting = keys.queued_like(*where, run_places.QUEUES)
        return placed if len(placed) >= limit else [], waiting

    def apply(
        self,
        session: Session,
        record: ScheduleRecord,
        schedule: Schedule,
        actions: Sequence[Action],
        now: int,
        *,
        outcome: str = STARTED,
        actor: str | None = None,
        reason: str | None = None,
        timetable: Timetable | None = None,
    ) -> TickEffects:
        """Write the runs and the tick rows of actions.

        With a timetable, ticks that are skipped for the reason of those before them are told by
        the row of these: a schedule of every second skips 86,400 ticks in a day under a long run.
        """
        effects = TickEffects()
        begun: list[int] = []
        rows: dict[int, TickRecord] = {}

        def tick(nominal: int, told: str, run_id: str | None = None) -> None:
            plain = (None, None, reason, actor, run_id, now)
            rows[nominal] = TickRecord(record.tenant, record.name, nominal, told, *plain)

        for action in actions:
            if isinstance(action, Skip):
                tick(action.nominal, SKIPPED)
                several = action.last if action.count != 1 else None
                rows[action.nominal] = rows[action.nominal]._replace(
                    last=several, tick_count=action.count, reason=action.reason.value
                )
                continue
            request = self.request(
                *(session, record, schedule, action.nominal), triggered=outcome == TRIGGERED
            )
            if isinstance(action, Begin):
                self._starter.check_open(session, request)
                effects.requests.append(request)
                begun.append(action.nominal)
            elif isinstance(action, Queue | Replace):
                if isinstance(action, Replace):
                    self._cancel_open(session, record, schedule, action.nominal, now, effects)
                effects.queues.append(request.queue)
                told = outcome if outcome != STARTED else QUEUED
                tick(action.nominal, told, self._starter.insert_queued(session, request))
        if effects.requests:
            effects.commits = self._starter.insert_with(session, effects.requests, now)
        for nominal, commit in zip(begun, effects.commits, strict=True):
            tick(nominal, outcome, commit.run_id)
        effects.ticks = [rows[nominal] for nominal in sorted(rows)]
        is_told = timetable is not None and _extends(session, record, timetable, actions, now)
        session.schedules.add_ticks(effects.ticks[1:] if is_told else effects.ticks)
        return effects

    def _cancel_open(
        self,
        session: Session,
        record: ScheduleRecord,
        schedule: Schedule,
        nominal: int,
        now: int,
        effects: TickEffects,
    ) -> None:
        """Cancel the open runs of a schedule: facts of this transaction, so none is lost."""
        running, waiting = self.open_runs(session, record, schedule)
        for run_id in [*waiting, *running]:
            action_id = uuid.uuid4().hex
            fact = {
                "id": action_id,
                "kind": ActionKind.CANCEL.value,
                "step_key": "",
                "actor": str(Actor(ActorKind.SCHEDULE, record.name)),
                "reason": f"the tick of {shown_time(nominal)} replaces it",
                "at": now,
                "options": {},
            }
            session.inbox.add_fact(action_id, run_id, "Action", fact, now)
            effects.cancelled.append(run_id)

    def finish(self, effects: TickEffects) -> None:
        """Wake workers and evaluate what the commit of a tick has left; recovery does it, too."""
        self._starter.finish(effects.requests, effects.commits)
        for run_id in effects.cancelled:
            self._after_commit.advance(run_id)
        for where in effects.queues:
            self._after_commit.begin_queued(*where)


def _extends(
    session: Session,
    record: ScheduleRecord,
    timetable: Timetable,
    actions: Sequence[Action],
    now: int,
) -> bool:
    """Let the row of the ticks before tell the first of these, if they are skipped alike."""
    first = actions[0] if actions else None
    if not isinstance(first, Skip):
        return False
    before = session.schedules.last_tick(record.tenant, record.name, first.nominal)
    if before is None or before.outcome != SKIPPED or before.actor is not None:
        return False
    if not continues(timetable, before.last or before.nominal, before.reason, first):
        return False
    # Rows of several ticks that were not counted have no number; that of one tick has 1.
    counts = (before.tick_count, first.count)
    count = None if None in counts else sum(n for n in counts if n is not None)
    session.schedules.extend_tick(before, first.last, count, now)
    return True


def singleton_key(schedule: str) -> str:
    """Return the key that the runs of a schedule share, unless they may overlap."""
    return f"schedule:{schedule}"
