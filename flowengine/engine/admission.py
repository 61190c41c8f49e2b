"""Admit tasks under limits and rates: after a commit that creates or ends some, and in recovery.

The decision is `evaluator.admission.decide`; the rows of the keys are locked around it. A process
that dies before it has admitted leaves tasks that wait, which recovery finds.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from flowengine.evaluator.admission import (
    Admission,
    StatedKey,
    WaitQueue,
    decide,
    durations,
    kind_of,
    read_keys,
    switched,
)
from flowengine.printable import clipped
from flowengine.store import Session, Store
from flowengine.store.admission import LockedKey, StoredQueue
from flowengine.store.failures import is_unavailable

log = logging.getLogger("flowengine")

_MAX_QUEUES = 50  # looked at in one transaction
_MAX_TASKS = 100  # of one queue
_MAX_ROUNDS = 200
_SHOWN_CHARACTERS = 300  # of the keys in a log line
_LATEST_LOOK = 1000  # milliseconds until the next look at a rate whose tasks have not started


@dataclass
class _Round:
    """The end of one transaction."""

    due: Counter[str]  #: admitted tasks by task list
    has_more: bool = False  #: tasks could not be looked at in this transaction
    missing: Collection[StatedKey] = ()  #: keys without a row


class Admissions:
    """Admits tasks of one database."""

    def __init__(self, database: Store) -> None:
        self._database = database

    def admit(self, queues: Mapping[str, str], freed: Iterable[str] = ()) -> Counter[str]:
        """Admit tasks of these queues, and of those that wait for these keys.

        `queues` has the limits of each, as its tasks state them. Returns the number of admitted
        tasks by task list. An error is logged: whatever was committed before stays committed, and
        recovery admits later.
        """
        due: Counter[str] = Counter()
        freed = sorted(set(freed))
        try:
            known = self._unblocked(queues)
            for start in range(0, len(known), _MAX_QUEUES):
                part = dict(list(known.items())[start : start + _MAX_QUEUES])
                due += self._in_rounds(part, None)
            for key in freed:
                due += self._in_rounds({}, key)
        except Exception as problem:
            level = logging.DEBUG if is_unavailable(problem) else logging.ERROR
            log.log(
                level,
                "tasks that wait for %s could not be admitted; recovery tries again",
                clipped(", ".join(map(str, [*queues.values(), *freed])), _SHOWN_CHARACTERS),
                exc_info=problem,
                extra={"action": "admission_failed"},
            )
        return due

    def _unblocked(self, queues: Mapping[str, str]) -> dict[str, str]:
        """Leave out the queues that wait for a key already: its next free slot is theirs."""
        if not queues:
            return {}
        with self._database.read() as session:
            rows = session.admission.queues(queues)
            passable = session.admission.passable([row.id for row in rows.values()])
        return {
            queue: limits
            for queue, limits in queues.items()
            if queue not in rows
            or rows[queue].blocked_on is None
            or queue in passable
            or _numbers(limits) != _numbers(rows[queue].limits)
        }

    def _in_rounds(self, queues: Mapping[str, str], key: str | None) -> Counter[str]:
        due: Counter[str] = Counter()
        for _ in range(_MAX_ROUNDS):
            with self._database.write() as session:
                done = self._round(session, queues, key)
            due += done.due
            if done.missing:
                with self._database.write() as session:
                    session.admission.create_keys(done.missing, session.now())
            elif not done.has_more:
                break
        return due

    def _round(self, session: Session, hinted: Mapping[str, str], key: str | None) -> _Round:
        rows, now = session.admission, session.now()
        found = rows.blocked_on(key, _MAX_QUEUES) if key is not None else []
        is_page = len(found) == _MAX_QUEUES
        limits = {**{queue.id: queue.limits for queue in found}, **hinted}
        if not limits:
            if key is not None and kind_of(key) == "rate":
                rows.clear_due(key, now)
            return _Round(Counter())
        stated = {one.name: one for text in limits.values() for one in read_keys(text)}
        keys = rows.lock_keys(stated)
        if missing := [one for name, one in stated.items() if name not in keys]:
            return _Round(Counter(), missing=missing)
        # Read again: another transaction may have served them before this one had the locks.
        stored = rows.queues(limits)
        queues = [stored.get(queue) or StoredQueue(queue, limits[queue]) for queue in limits]
        for queue in queues:
            queue.limits = max(limits[queue.id], queue.limits, key=_since)
        done, blocked = _Serving(session, keys, now).serve(queues)
        # Those behind a page of queues that now wait for other keys have not been looked at.
        done.has_more = done.has_more or (is_page and key not in blocked)
        return done


class _Serving:
    """One transaction that holds the locks of the keys it needs."""

    def __init__(self, session: Session, keys: dict[str, LockedKey], now: int) -> None:
        self._rows, self._locked, self._now = session.admission, keys, now
        self._keys: dict[str, StatedKey] = {}  #: with the numbers that count
        self._ready: dict[str, int] = {}  #: by task: since when it waits
        self._next_free: dict[str, int | None] = {}

    def serve(self, queues: list[StoredQueue]) -> tuple[_Round, Collection[str]]:
        """Admit tasks of these queues; also return the keys without a free slot."""
        waiting = {queue.id: self._loaded(queue) for queue in queues}
        self._take_over_numbers(queues)
        rates = [name for name, key in self._keys.items() if key.is_rate]
        self._rows.free_slots(self._keys, rates, self._now)
        used = self._rows.used_slots(self._keys)
        self._next_free = {name: until for name, (_, until) in used.items()}
        free = {name: key.number - used.get(name, (0, None))[0] for name, key in self._keys.items()}
        is_full = {id: len(queue.tasks) == _MAX_TASKS for id, queue in waiting.items()}
        decision = decide(waiting.values(), free)
        due, is_whole = self._write(decision, {queue.id: queue for queue in queues})
        self._save(queues, waiting, decision, is_full)
        is_served = any(is_full[id] and not queue.tasks for id, queue in waiting.items())
        return _Round(due, has_more=is_served or not is_whole), set(decision.blocked.values())

    def _loaded(self, queue: StoredQueue) -> WaitQueue:
        """Return a queue with its first tasks, which are locked."""
        first = self._rows.first_tasks(queue.id, _MAX_TASKS, self._now)
        self._ready |= {task: ready for task, _, ready in first}
        if first:
            queue.limits = max(queue.limits, *(limits for _, limits, _ in first), key=_since)
        names = tuple(key.name for key in read_keys(queue.limits))
        tasks = deque(task for task, _, _ in first)
        reserved = self._rows.reserved(tasks[0], names) if queue.passed and tasks else frozenset()
        return WaitQueue(
            queue.id, names, queue.turn or self._now * 1000, tasks, reserved, queue.passed
        )

    def _take_over_numbers(self, queues: Iterable[StoredQueue]) -> None:
        """Let the number count that the run states which was started last."""
        for stated in sorted(key for queue in queues for key in read_keys(queue.limits)):
            stored = self._locked[stated.name].stated
            if stated.since < stored.since or stated == stored:
                continue
            if (stated.number, stated.per) != (stored.number, stored.per):
                log.info(
                    "%s is %s from now on, and was %s: a run that was started later states it",
                    stated.name,
                    _number(stated),
                    _number(stored),
                    extra={"action": "limit_changed", "key": stated.name},
                )
            elif stated.since - stored.since < 60_000:
                continue  # the same number: no need to write it for every run
            self._rows.change_key(stated, self._now)
            self._locked[stated.name] = self._locked[stated.name]._replace(stated=stated)
        self._keys = {name: locked.counted for name, locked in self._locked.items()}

    def _write(
        self, decision: Admission, queues: Mapping[str, StoredQueue]
    ) -> tuple[Counter[str], bool]:
        """Admit tasks and insert their slots; return the task lists, and if all were admitted."""
        due: Counter[str] = Counter()
        taken = list(decision.reserved)
        is_whole = True
        for task, queue, keys in decision.admitted:
            first_kind = kind_of(read_keys(queues[queue].limits)[0].name)
            switches = queues[queue].switches
            waited = durations(self._ready[task], self._now, switches, first_kind)
            task_list = self._rows.admit(task, waited, self._now)
            if task_list is None:
                is_whole = False  # it was canceled since it was read
                continue
            due[task_list] += 1
            taken += [(task, key) for key in keys]
        self._rows.take_slots(taken, {name: key.per for name, key in self._keys.items()})
        return due, is_whole

    def _save(
        self,
        queues: Iterable[StoredQueue],
        waiting: Mapping[str, WaitQueue],
        decision: Admission,
        is_full: Mapping[str, bool],
    ) -> None:
        """Store which queues wait, and for what."""
        served = {queue: place for place, (_, queue, _) in enumerate(decision.admitted)}
        ended, rates = [], set()
        for queue in queues:
            key = decision.blocked.get(queue.id)
            next_due = None
            if key is None and is_full[queue.id]:
                key = queue.blocked_on  # it has more tasks, for the next round
            elif key is None:
                next_due = self._rows.next_due(queue.id, self._now)
                if next_due is None:
                    ended.append(queue.id)
                    continue
            place = served.get(queue.id, 0 if not queue.turn else None)
            if place is not None:
                queue.turn = self._now * 1000 + place
            queue.blocked_on, queue.due = key, next_due
            queue.passed = decision.passed[queue.id]
            if key is not None:
                queue.switches = switched(queue.switches, self._now, key)
                rates |= {key} if kind_of(key) == "rate" else set()
            self._rows.save_queue(queue, self._now)
        self._rows.drop_queues(ended)
        for name in rates:
            until = self._next_free.get(name)
            per = self._keys[name].per or 0
            later = self._now + min(per, _LATEST_LOOK)
            is_known = until is not None and until > self._now
            self._rows.set_due(name, until if is_known else later, self._now)


def _since(limits: str) -> int:
    return max(key.since for key in read_keys(limits))


def _numbers(limits: str) -> list[tuple[str, int, int | None]]:
    return [key[:3] for key in read_keys(limits)]


def _number(key: StatedKey) -> str:
    return f"{key.number} in {key.per / 1000:g} s" if key.per is not None else str(key.number)
