"""Claims of servers that have limits: how many tries they hold, and of how many runs.

The processes of a server take turns: each claim locks, counts the tries that the server holds, and
takes no more than there is room for, in one transaction. A server without limits claims as ever,
and asks once in a heartbeat's interval whether it has got any.

A wake-up that finds no room is answered, and must not be lost. Its task list is noted in the row of
the server, under the lock; whichever process has ended a try claims again, sees it, and wakes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from flowengine.dispatch import Notifier
from flowengine.settings import Settings
from flowengine.store import Session, Store
from flowengine.store.claims import Claim, WorkerIdentity
from flowengine.store.failures import is_unavailable
from flowengine.store.worker_limits import LimitedServer, Limits

log = logging.getLogger("flowengine")

_MAX_KNOWN = 1_000  # servers whose limits are remembered; a process has one, the wire API many

#: Claims at most the given number of tasks, and if runs are given only theirs.
Take = Callable[[Session, int, Collection[str] | None], Claim]


@dataclass(frozen=True, slots=True)
class Room:
    """How much a server may claim now."""

    tasks: int
    runs: Collection[str] | None = None  #: only tasks of these; None: of any

    @property
    def is_none(self) -> bool:
        return self.tasks <= 0 or (self.runs is not None and not self.runs)


def room(limits: Limits, held: Mapping[str, int], most: int) -> Room:
    """Return how much of `most` a server may claim; `held` are its tries by run.

    Each of several tasks may be of another run. So while there is room for new runs, no more tasks
    are claimed than that.
    """
    if limits.tasks is not None:
        most = min(most, limits.tasks - sum(held.values()))
    if limits.workflows is None:
        return Room(most)
    free = limits.workflows - len(held)
    if free > 0:
        return Room(min(most, free))
    # After the limit was lowered some runs get no more tries here, so that their number falls.
    return Room(most, sorted(held)[: limits.workflows])


def is_full(limits: Limits, held: Mapping[str, int], claimed: Claim) -> bool:
    """Whether a server that has just claimed these tasks has no room for another run's."""
    tries = sum(held.values()) + len(claimed.tasks)
    runs = {*held, *(task.workflow_id for task in claimed.tasks)}
    return (limits.tasks is not None and tries >= limits.tasks) or (
        limits.workflows is not None and len(runs) >= limits.workflows
    )


class LimitedClaims:
    """Claims for the servers of one engine that have limits. Shared by all threads."""

    def __init__(
        self,
        database: Store,
        notifier: Notifier,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._notifier, self._clock = database, notifier, clock
        self._interval = settings.heartbeat_interval
        #: Of a server that is not registered yet.
        self._own = Limits(settings.max_tasks or None, settings.max_workflows or None)
        self._known: dict[str, tuple[float, Limits]] = {}  #: by boot id, with the time of reading

    def apply_to(self, identity: WorkerIdentity) -> bool:
        """Whether a server has limits. Asks the database once in a heartbeat's interval."""
        if not identity.boot_id:
            return False
        read_at, limits = self._known.get(identity.boot_id, (0.0, None))
        if limits is not None and self._clock() - read_at < self._interval:
            return bool(limits)
        try:
            with self._database.autocommit_read() as session:
                server = session.worker_limits.of_server(identity.server_id)
        except Exception as problem:
            if not is_unavailable(problem):
                raise
            return limits is None or bool(limits)  # the claim itself tells of the outage
        return bool(self._note(identity, server))

    def _note(self, identity: WorkerIdentity, server: LimitedServer | None) -> Limits:
        """Remember the limits of a server, and log a change."""
        limits = self._own if server is None else server.limits
        _, before = self._known.get(identity.boot_id, (0.0, Limits()))
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()  # they are read again
        self._known[identity.boot_id] = self._clock(), limits
        if limits != before:
            log.info(
                "worker %s holds at most %s tries, of %s runs",
                server.name if server else identity.server_id,
                "any number of" if limits.tasks is None else limits.tasks,
                "any number of" if limits.workflows is None else limits.workflows,
                extra={"action": "worker_limits_obeyed"},
            )
        return limits

    def claim(self, identity: WorkerIdentity, task_list: str, most: int, take: Take) -> Claim:
        """Claim `most` tasks at most, as far as the limits of the server allow it."""
        with self._database.write() as session:
            rows = session.worker_limits
            rows.lock(identity)
            server = rows.of_server(identity.server_id)
            limits = self._note(identity, server)
            held = rows.held(identity.boot_id)
            allowed = room(limits, held, most)
            claim = Claim([])
            if not allowed.is_none:
                claim = take(session, allowed.tasks, allowed.runs)
            full = set() if server is None else set(server.full_lists)
            waiting = full - {task_list}
            is_cut = allowed.is_none or allowed.runs is not None
            if is_cut or (allowed.tasks < most and claim.is_more):
                waiting.add(task_list)
            woken: set[str] = set()
            if not is_cut and not is_full(limits, held, claim):
                woken, waiting = waiting - {task_list}, set()
            if waiting != full:
                rows.note_full(identity.server_id, waiting)
        if woken:
            self._notifier.notify(dict.fromkeys(woken, 1))
        return replace(claim, is_limited=bool(limits), full_lists=waiting - {task_list})
