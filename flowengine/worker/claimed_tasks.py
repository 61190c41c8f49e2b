"""The claimed tasks of one process: one table of entries, keyed by task and lease.

Each entry is in one state of an explicit machine, and `next_state` is the only way from one state
to another. The state describes the work of this process. The database alone decides who holds the
lease.

The lease is part of the key, because one thread may release a task while another claims it again.
Invariant: an entry is in the order of one batch, or with the one thread that took it from there.
That thread alone changes its state, so starting and finishing take no lock of the table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from flowengine.engine.in_flight import InFlightMarkers
from flowengine.errors import IllegalTransition
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Outcome, Report
from flowengine.step_logs.try_log import TryLog

ClaimKey = tuple[str, int]  #: the id of a task, and its lease

_REMEMBERED = 600.0  # seconds for which a claim's response may arrive after its task was disowned


class ClaimState:
    """Plain strings, as in the evaluator: comparing them in the hot loop costs nothing."""

    UNKNOWN = "unknown"  #: the process has no entry for this task and lease
    CLAIMED = "claimed"  #: not started
    STARTED = "started"  #: the facet runs
    FINISHED = "finished"  #: the outcome is known to this process alone
    SPOOLED = "spooled"  #: the report is kept until the database accepts it
    REPORTED = "reported"  #: the database has accepted or refused the report
    RELEASED = "released"
    PARKED = "parked"
    DISOWNED = "disowned"  #: nobody here works on it, though the database may list it as ours

    FINAL = frozenset({REPORTED, RELEASED, PARKED, DISOWNED})
    ACTIVE = frozenset({CLAIMED, STARTED, FINISHED})  #: a process that ends waits for these


class ClaimEvent:
    CLAIM = "claim"
    START = "start"
    FINISH = "finish"
    REPORT = "report"
    SPOOL = "spool"
    DELIVER = "deliver"  #: the database has accepted or refused a spooled report
    RELEASE = "release"
    PARK = "park"
    DISOWN = "disown"


_S, _E = ClaimState, ClaimEvent

CLAIM_TRANSITIONS: Mapping[str, Mapping[str, str]] = {
    # A claim may be committed and its response lost with the connection: DISOWN without CLAIM.
    _S.UNKNOWN: {_E.CLAIM: _S.CLAIMED, _E.DISOWN: _S.DISOWNED},
    _S.CLAIMED: {
        _E.START: _S.STARTED,
        _E.RELEASE: _S.RELEASED,
        _E.PARK: _S.PARKED,
        _E.DISOWN: _S.DISOWNED,  # it could not be released or parked
    },
    _S.STARTED: {
        _E.FINISH: _S.FINISHED,
        _E.SPOOL: _S.SPOOLED,  # its outcome is a child run that could not be started yet
        _E.RELEASE: _S.RELEASED,  # the process ends
        _E.PARK: _S.PARKED,  # the code of its function does not fit: it waits, uncounted
        _E.DISOWN: _S.DISOWNED,  # and could not be parked
    },
    # Invariant: a finished task is never released, for its second run would not be counted.
    _S.FINISHED: {_E.REPORT: _S.REPORTED, _E.SPOOL: _S.SPOOLED},
    # Invariant: a spooled task stays claimed until its report is delivered, or is gone.
    _S.SPOOLED: {_E.DELIVER: _S.REPORTED, _E.DISOWN: _S.DISOWNED},
    _S.REPORTED: {},
    # The facet goes on after its task was released, and its outcome is ignored.
    # Its thread, or the guard of a batch, may release it at the same time as the process's end.
    _S.RELEASED: dict.fromkeys((_E.FINISH, _E.SPOOL, _E.RELEASE, _E.DISOWN), _S.RELEASED),
    _S.PARKED: {},
    # The response to a claim may arrive after its task was disowned, and is ignored then.
    _S.DISOWNED: {_E.CLAIM: _S.DISOWNED},
}


def next_state(task_id: str, state: str, event: str) -> str:
    try:
        return CLAIM_TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(f"claimed task {task_id}", state, event) from None


def _no_try() -> None: ...


def _no_activation(_: bool) -> None: ...


def _no_log() -> TryLog | None:
    return None


class ClaimedTask:
    """A task under one lease, and how far this process has come with it."""

    __slots__ = (
        *("at_report", "key", "log", "lose", "mark", "overhead", "record", "report"),
        *("seconds", "since", "state", "task"),
    )

    task: TaskDefinition  #: missing in an entry that is disowned before its claim's response
    report: Report  #: since it is finished

    def __init__(self, key: ClaimKey, since: float) -> None:
        self.key, self.since = key, since
        self.state = ClaimState.UNKNOWN
        self.mark: int | None = None  #: its slot among the in-flight markers
        self.lose: Callable[[], object] = _no_try  #: called when the lease of its try is lost
        self.overhead = 0.0  #: seconds of its try that the engine took, and not the facet
        self.seconds: float | None = None  #: of its code, if it is known; else the rest of its try
        self.log: Callable[[], TryLog | None] = _no_log  #: returns the log, if there are lines
        #: Called when the database has accepted its report, or has not.
        self.at_report: Callable[[bool], object] = _no_activation
        self.record: dict[str, Any] | None = None  #: its report, while the spool has no room

    def apply(self, event: str) -> None:
        self.state = next_state(self.key[0], self.state, event)


class ClaimedTasks:
    """Shared by all threads of a process."""

    def __init__(
        self, markers: InFlightMarkers, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.markers, self.clock = markers, clock
        self._entries: dict[ClaimKey, ClaimedTask] = {}
        self._changed = threading.Condition()

    # --- transitions ---

    def claim(self, tasks: Sequence[TaskDefinition]) -> list[ClaimedTask]:
        """Add tasks that the database gave to this process, without those it has disowned."""
        now, ours = self.clock(), []
        with self._changed:
            for task in tasks:
                key = task.uuid, task.lease
                entry = self._entries.get(key)
                if entry is None:
                    entry = self._entries[key] = ClaimedTask(key, now)
                    entry.task = task
                    ours.append(entry)
                entry.apply(ClaimEvent.CLAIM)
        return ours

    def start(self, entry: ClaimedTask) -> None:
        entry.apply(ClaimEvent.START)
        entry.mark = self.markers.start(entry.key[0])

    def pause(self, entry: ClaimedTask) -> None:
        """Note that a started task does not run now: if the process dies, it is not lost."""
        self.markers.clear(entry.mark)
        entry.mark = None

    def resume(self, entry: ClaimedTask) -> None:
        if entry.mark is None and entry.state == ClaimState.STARTED:
            entry.mark = self.markers.start(entry.key[0])

    def finish(self, entry: ClaimedTask, outcome: Outcome) -> bool:
        """Keep the outcome; False: the task was released meanwhile, and its outcome is refused."""
        entry.report = Report(entry.task, outcome)
        entry.since = self.clock()
        entry.apply(ClaimEvent.FINISH)
        self.markers.finish(entry.mark)
        return entry.state == ClaimState.FINISHED

    def spool(self, entry: ClaimedTask, record: dict[str, Any] | None = None) -> None:
        """The report waits in the spool; with a record it waits in memory."""
        entry.record = record
        entry.apply(ClaimEvent.SPOOL)
        self.markers.finish(entry.mark)
        with self._changed:
            self._changed.notify_all()

    def close(self, event: str, entries: Iterable[ClaimedTask]) -> None:
        """Bring entries to a final state. A disowned one is remembered, all others are dropped."""
        with self._changed:
            for entry in entries:
                entry.apply(event)
                self.markers.clear(entry.mark)
                entry.mark = None
                if entry.state != ClaimState.DISOWNED:
                    self._entries.pop(entry.key, None)
            self._changed.notify_all()

    def disown_unknown(self, held: Collection[ClaimKey]) -> set[ClaimKey]:
        """Return the keys that the database lists as ours and that nobody here works on."""
        held = set(held)
        with self._changed:
            for key in held - self._entries.keys():
                entry = self._entries[key] = ClaimedTask(key, self.clock())
                entry.apply(ClaimEvent.DISOWN)
            disowned = {k for k, e in self._entries.items() if e.state == ClaimState.DISOWNED}
            for key in disowned - held:  # fencing refuses whatever arrives for them
                if self.clock() - self._entries[key].since > _REMEMBERED:
                    del self._entries[key]
            return disowned & held

    # --- questions ---

    def in_states(self, *states: str) -> list[ClaimedTask]:
        with self._changed:
            return [entry for entry in self._entries.values() if entry.state in states]

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no task is claimed, started or finished and unreported."""

        def is_idle() -> bool:
            return not any(e.state in ClaimState.ACTIVE for e in self._entries.values())

        with self._changed:
            return self._changed.wait_for(is_idle, timeout=seconds)
