"""The feed of events: the changes of all events of a run, or of all runs, in order without gaps.

A feed is read in pages, each with a constant number of statements. One that follows waits for new
commits: by a notification of PostgreSQL, else by asking at growing intervals.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from flowengine.engine.event_changes import (
    SCALE,
    EventChange,
    NamedRows,
    changes_of,
    ids_of,
    key_of,
    names_of,
)
from flowengine.errors import FeedDisabled, UnknownRun
from flowengine.evaluator.records import id_within
from flowengine.evaluator.states import RunState
from flowengine.store import Session, Store, codec
from flowengine.store.feed import FeedEntry
from flowengine.store.protocol import CompletionListener

PAGE = 100  #: commits that are read at once
_FIRST_PAUSE, _LAST_PAUSE, _GROWTH = 0.02, 1.0, 1.5  #: seconds between two reads
_LISTENING_PAUSE = 10.0  #: while the database notifies: a connection may be dead without an error


class FeedReader:
    """Reads the feeds of one database. Shared by all threads."""

    def __init__(self, database: Store, *, has_feed: bool) -> None:
        self._database, self.has_feed = database, has_feed
        self._lock = threading.Lock()
        self._wakes: set[Callable[[], object]] = set()
        self._listener: CompletionListener | None = None

    # --- pages ---

    def page(
        self, run_id: str | None, after: int, tenant: str | None
    ) -> tuple[list[EventChange], int, bool]:
        """Return the changes behind `after`, where to go on, and whether there may be more.

        There is nothing more behind the last page of a run that has ended.
        """
        first, has_ended = (after + 1) // SCALE, False
        if run_id is not None:
            with self._database.read() as session:
                run = session.runs.get(run_id)  # before its commits: an end is among them
                if run is None or tenant not in (None, run.tenant):
                    raise UnknownRun(run_id)
                has_ended = run.state in RunState.FINAL
                entries = session.feed.of_run(run_id, first, PAGE)
                changes = _changes(session, entries)
        else:
            entries, changes = self._of_all_runs(first, tenant)
        has_more = len(entries) == PAGE or not has_ended
        found = [change for change in changes if change.seq > after]
        if entries:
            # Behind all changes of the last commit, which have all been read.
            after = max(after, entries[-1].position * SCALE + SCALE - 1)
        return found, after, has_more

    def _of_all_runs(
        self, first: int, tenant: str | None
    ) -> tuple[list[FeedEntry], list[EventChange]]:
        """Read a page; commits are numbered if it is not full without them."""
        if not self.has_feed:
            raise FeedDisabled()
        while True:
            with self._database.read() as session:
                entries = session.feed.page(first, tenant, PAGE)
                if len(entries) == PAGE or not session.feed.is_marked():
                    return entries, _changes(session, entries)
            with self._database.write() as session:
                session.feed.number()

    # --- waiting ---

    @contextmanager
    def woken(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` for new commits, where the database notifies."""
        with self._lock:
            self._wakes.add(wake)
            if self._listener is None and self.has_feed:
                self._listener = self._database.listen_for_events(
                    lambda _: self._wake(), self._wake
                )
        try:
            yield
        finally:
            with self._lock:
                self._wakes.discard(wake)

    def _wake(self) -> None:
        with self._lock:
            wakes = list(self._wakes)
        for wake in wakes:
            wake()

    @property
    def is_notified(self) -> bool:
        return self._listener is not None and self._listener.is_listening

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()


def _changes(session: Session, entries: list[FeedEntry]) -> list[EventChange]:
    """Return the changes of commits: five statements, however many they are."""
    bodies = [codec.load(entry.summary) for entry in entries]
    named = list(zip(entries, bodies, strict=True))
    keys = {(entry.run_id, key_of(name)) for entry, body in named for name in names_of(body)}
    ids = {step_id for body in bodies for step_id in ids_of(body)}
    if not keys and not ids:
        return []
    steps = session.feed.steps(keys, ids)
    events = session.feed.events({(s.run_id, id_within(s.id, "event")) for s in steps})
    tries = session.feed.tries({(s.run_id, s.id) for s in steps if s.id in events})
    by_key, by_step = defaultdict(list), defaultdict(list)
    for step in {step.id: step for step in steps}.values():
        by_key[step.run_id, step.key].append(step)
    for tried in tries:
        by_step[tried.step_id].append(tried)
    rows = NamedRows(by_key, {step.id: step for step in steps}, events, by_step)
    return [change for entry, body in named for change in changes_of(entry, body, rows)]


class EventFeed:
    """The changes of events behind a place, as a synchronous and an asynchronous iterator.

    `after` is the place behind the last change that it has returned.
    """

    def __init__(
        self,
        reader: FeedReader,
        run_id: str | None,
        after: int,
        tenant: str | None,
        *,
        follow: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._reader, self._run_id, self._tenant = reader, run_id, tenant
        self._follow, self._timeout = follow, timeout
        self.after = self._place = after
        self._read: deque[EventChange] = deque()
        self._has_more = True

    def _fill(self) -> bool:
        """Read the next page that has changes; return whether it has any."""
        while True:
            before = self._place
            about = (self._run_id, self._place, self._tenant)
            found, self._place, self._has_more = self._reader.page(*about)
            self._read += found
            if found or self._place == before:
                return bool(found)

    def _next(self) -> EventChange:
        change = self._read.popleft()
        self.after = change.seq
        return change

    def __iter__(self) -> Iterator[EventChange]:
        woken = threading.Event()
        pauses = _Pauses(self._reader, self._timeout)
        with self._reader.woken(woken.set):
            while True:
                while self._read:
                    yield self._next()
                    pauses.restart()
                woken.clear()  # before the page: a commit after it sets the event again
                if self._fill():
                    continue
                if (pause := self._pause(pauses)) is None:
                    return
                woken.wait(pause)

    async def __aiter__(self) -> AsyncIterator[EventChange]:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        pauses = _Pauses(self._reader, self._timeout)

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

        with self._reader.woken(wake):
            while True:
                while self._read:
                    yield self._next()
                    pauses.restart()
                woken.clear()
                if await asyncio.to_thread(self._fill):
                    continue
                if (pause := self._pause(pauses)) is None:
                    return
                try:
                    await asyncio.wait_for(woken.wait(), pause)
                except TimeoutError:
                    continue

    def _pause(self, pauses: _Pauses) -> float | None:
        """Return how long to wait for more; None: there is no more, or the time is over."""
        return pauses.next() if self._follow and self._has_more else None


class _Pauses:
    """How long a reader waits that has read everything."""

    def __init__(self, reader: FeedReader, timeout: float | None) -> None:
        self._reader = reader
        self._timeout = math.inf if timeout is None else timeout
        self.restart()

    def restart(self) -> None:
        self._interval, self._ends = _FIRST_PAUSE, time.monotonic() + self._timeout

    def next(self) -> float | None:
        left = self._ends - time.monotonic()
        if left <= 0:
            return None
        pause = _LISTENING_PAUSE if self._reader.is_notified else self._interval
        self._interval = min(self._interval * _GROWTH, _LAST_PAUSE)
        return min(pause, left)
