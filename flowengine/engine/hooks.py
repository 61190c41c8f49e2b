"""Hooks: deliver the outcomes of runs and steps, at least once and in order for each run.

A commit with an outcome writes a row into the outbox, in the same transaction, if a sink is
configured. So do the begin of an alarm, and a schedule that stops. One process at a time delivers;
what it sends is read from the history. A delivery that fails is repeated with growing pauses, and
those behind it of the same run wait.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from flowengine.engine.history import HistoryEntry, entries
from flowengine.engine.queries import run_info
from flowengine.engine.results import RunInfo
from flowengine.engine.webhook_sink import webhook_sink
from flowengine.errors import UnknownRun
from flowengine.evaluator.records import row_key
from flowengine.evaluator.states import RunState, StepState
from flowengine.program.addresses import RowKind
from flowengine.scheduling.states import ScheduleState
from flowengine.secret_keys import without_secrets
from flowengine.settings import Settings
from flowengine.store import Session, Store
from flowengine.store.commits import OutboxRule
from flowengine.store.outbox import RUN_ALARM, SCHEDULE_STOPPED, Entry, id_of_schedule
from flowengine.store.shown_values import UNREADABLE, readable

log = logging.getLogger("flowengine")

SIGNALS, WEBHOOK = "signals", "webhook"
_LEASE = "hooks"
_LEASE_MS = 60_000
_BATCH, _THREADS = 100, 8
_FIRST_PAUSE, _LONGEST_PAUSE = 1_000, 3_600_000  #: milliseconds between two tries
_MAX_ERROR = 500  #: characters
_USUAL = 2  #: failed tries that are no reason to warn: a receiver is deployed
_RUN_EVENTS = {
    RunState.COMPLETED: "run_completed",
    RunState.FAILED: "run_failed",
    RunState.CANCELLED: "run_cancelled",
}
_STEP_EVENTS = {StepState.ERROR: "step_failed", StepState.COMPLETE: "step_completed"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run or of a step; or a thing that somebody should look at."""

    #: run_completed, run_failed, run_cancelled, step_failed or step_completed; run_alarm or
    #: schedule_stopped
    event: str
    path: str  #: of the step; of a run the workflow's name; the name of the schedule
    error: Mapping[str, Any] | None = None  #: type, message and path of a failure or an alarm


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcomes of one commit, or a notice."""

    id: str  #: the same for each try of the delivery: a receiver can drop what it has seen
    run_id: str  #: empty: of a schedule
    revision: int
    at: int
    workflow: str
    state: str
    tenant: str
    key: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    outcomes: Sequence[Outcome] = ()


Sink = Callable[[Delivery], None]  #: raises if the delivery has failed


def outbox_rule(settings: Settings) -> OutboxRule | None:
    """Return which commits are delivered, and to which sinks; None: nothing is configured."""
    sinks = [SIGNALS] if settings.outcome_signals else []
    sinks += [WEBHOOK] if settings.webhook_url else []
    if not sinks and not settings.event_feed:
        return None
    events = frozenset(filter(None, settings.hook_events.split(","))) if sinks else frozenset()
    return OutboxRule(tuple(sinks), events, settings.event_feed)


def pause_before(tries: int) -> int:
    """Return the milliseconds before the next try, after that many."""
    pause: int = _FIRST_PAUSE << min(tries, 30)
    return min(pause, _LONGEST_PAUSE)


class Hooks:
    def __init__(self, database: Store, settings: Settings) -> None:
        self._database, self._settings = database, settings
        self._sinks: dict[str, Sink] = {}
        if settings.webhook_url:
            self._sinks[WEBHOOK] = webhook_sink(settings)
        self._owner = uuid.uuid4().hex
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._is_closed = threading.Event()
        self._has_lease = False

    def add_sink(self, name: str, sink: Sink) -> None:
        """Let this process deliver to a sink; signals are delivered where receivers are."""
        self._sinks[name] = sink

    # --- in the background ---

    def start(self) -> None:
        """Deliver in a thread of its own what is due; does nothing while that thread works.

        A receiver may hang, and recovery must not.
        """
        if not self._sinks or self._is_closed.is_set():
            return
        is_ours = self._pid == os.getpid()
        if is_ours and self._thread is not None and self._thread.is_alive():
            return
        with self._database.read() as session:
            if not any(session.outbox.due(sink, session.now(), 1) for sink in self._sinks):
                return
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._work, name="flowengine-hooks", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while self.deliver():
                pass
        except Exception:
            log.warning(
                "outcomes were not delivered to %s; the next recovery pass tries again",
                ", ".join(self._sinks),
                exc_info=True,
                extra={"action": "deliveries_failed"},
            )

    def close(self) -> None:
        self._is_closed.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(self._settings.webhook_timeout)
            if self._has_lease and not self._thread.is_alive():
                with suppress(Exception), self._database.write() as session:
                    session.locks.expire(_LEASE)

    # --- deliveries ---

    def is_pending(self) -> bool:
        """Whether an outcome is still to be delivered, now or later, by this process."""
        with self._database.read() as session:
            return any(session.outbox.is_pending(sink) for sink in self._sinks)

    def deliver(self) -> int:
        """Deliver what is due, unless another process does; return how many were tried."""
        with self._database.write() as session:
            if not session.locks.acquire(_LEASE, self._owner, _LEASE_MS, session.now()):
                return 0
            due = [
                entry
                for sink in self._sinks
                for entry in session.outbox.due(sink, session.now(), _BATCH)
            ]
            self._has_lease = bool(due)
            if not due:
                session.locks.expire(_LEASE)  # the next process need not wait for its end
        if not due or self._is_closed.is_set():
            return 0
        # Of one run and sink there is one entry: threads do not change the order.
        with ThreadPoolExecutor(min(_THREADS, len(due))) as threads:
            list(threads.map(self._deliver, due))
        return len(due)

    def _deliver(self, entry: Entry) -> None:
        delivery: Delivery | None = None
        problem: Exception | None = None
        with self._database.read() as session:
            try:
                delivery = self._read(session, entry)
            except UNREADABLE as error:  # those behind it are delivered
                problem = error
        if delivery is not None and delivery.outcomes:
            try:
                self._sinks[entry.sink](delivery)
            except Exception as error:
                problem = error
        with self._database.write() as session:
            if problem is None:
                session.outbox.delivered(entry)
                return
            tries = entry.tries + 1
            has_ended = tries >= self._settings.webhook_max_tries
            pause = pause_before(entry.tries)
            due = None if has_ended else session.now() + pause
            session.outbox.postpone(entry, due, f"{type(problem).__name__}: {problem}"[:_MAX_ERROR])
        log.log(
            logging.ERROR if has_ended else logging.WARNING if tries > _USUAL else logging.INFO,
            "delivery %s to the %s failed (try %d): %s; %s",
            *(_id_of(entry), entry.sink, tries, problem),
            "it is given up, see `flowengine doctor`"
            if has_ended
            else f"it is tried again in {pause / 1000:g} s",
            extra={"action": "delivery_failed", "run": entry.run_id},
        )

    def _read(self, session: Session, entry: Entry) -> Delivery | None:
        """Read the outcomes of a commit from the history; None if there is nothing to tell.

        The run was removed, its alarm is gone, or the schedule goes on.
        """
        if entry.revision == SCHEDULE_STOPPED:
            return _stopped_schedule(session, entry)
        try:
            run = run_info(session, entry.run_id)
        except UnknownRun:
            return None
        if entry.revision == RUN_ALARM:
            return _alarm(run, entry)
        found = entries(session, entry.run_id, entry.revision - 1, 1)
        if not found or found[0].revision != entry.revision:
            return None
        rule = outbox_rule(self._settings)
        wanted = rule.events if rule else frozenset()
        outcomes = [one for one in _outcomes(session, run, found[0]) if one.event in wanted]
        state, at = found[0].state, found[0].at
        return _of_run(run, entry, outcomes, revision=entry.revision, at=at, state=state)


def _id_of(entry: Entry) -> str:
    # A notice may begin anew while its run stays at the same revision.
    return f"{entry.run_id}-{entry.revision if entry.revision > 0 else entry.created}"


def _of_run(run: RunInfo, entry: Entry, outcomes: Sequence[Outcome], **when: Any) -> Delivery:
    return Delivery(
        id=_id_of(entry),
        run_id=run.id,
        workflow=run.workflow,
        tenant=run.tenant,
        key=run.key,
        labels=run.labels,
        outcomes=outcomes,
        **when,
    )


def _alarm(run: RunInfo, entry: Entry) -> Delivery | None:
    if run.alarm is None or run.is_final:
        return None
    error = {"type": "Alarm", "message": run.alarm, "path": run.workflow}
    outcome = Outcome("run_alarm", run.workflow, error)
    when = {"revision": run.revision, "at": entry.created, "state": run.state}
    return _of_run(run, entry, [outcome], **when)


def _stopped_schedule(session: Session, entry: Entry) -> Delivery | None:
    for record in session.schedules.in_state(ScheduleState.STOPPED):
        if id_of_schedule(record.tenant, record.name) == entry.run_id:
            break
    else:
        return None
    error = {"type": "ScheduleStopped", "message": record.error or "", "path": record.name}
    return Delivery(
        id=_id_of(entry),
        run_id="",
        revision=0,
        at=record.updated,
        workflow=record.workflow,
        state=record.state,
        tenant=record.tenant,
        key=None,
        outcomes=[Outcome("schedule_stopped", record.name, error)],
    )


def _outcomes(session: Session, run: RunInfo, entry: HistoryEntry) -> list[Outcome]:
    """Return the ends of steps and of the run in one commit: steps first."""
    failed = [step.path for step in entry.steps if step.state == StepState.ERROR]
    keys = {path: row_key(RowKind.STEP, path) for path in failed}
    rows = session.steps.load({run.id: list(keys.values())})[run.id] if keys else {}
    found = []
    for step in entry.steps:
        if (event := _STEP_EVENTS.get(step.state)) is None:
            continue
        row = rows.get(keys.get(step.path, ""))
        # An enclosing step fails with the error of the step inside it: that one has the outcome.
        if step.state == StepState.ERROR and (
            row is None or not row.error or row.error.get("path") != step.path
        ):
            continue
        found.append(Outcome(event, step.path, _error(row.error if row else None)))
    event = _RUN_EVENTS.get(entry.state)
    if event is not None:
        found.append(Outcome(event, run.workflow, _error(run.error)))
    return found


def _error(error: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not readable(error):  # raises: a sink gets it from a process that can read it
        return None
    assert error is not None
    shown = {name: error.get(name) for name in ("type", "message", "path")}
    masked: dict[str, Any] = without_secrets(shown)
    return masked
