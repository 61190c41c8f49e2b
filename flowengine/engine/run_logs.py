"""Read the log of a run: what there is, in the order of time, and what is added.

A reader has a place in each try (`log_places.py`). A chunk that does not begin there is kept back
until the lines before it are stored, or their time is over: then it is passed on behind a line
that says so, and the reader goes on to look for them. A reader that follows asks for the chunks
that were stored in the last seconds, which costs the same however long the log is, and from time
to time looks behind every place.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from flowengine.engine.filter_values import number_of_rows
from flowengine.engine.last_lines import last_lines
from flowengine.engine.log_entries import (
    LineFilter,
    LogEntry,
    entries_of,
    entry_of,
    line_filter,
)
from flowengine.engine.log_places import OWN_LOGGER, TryPlace, accounted_from, untold_text
from flowengine.engine.log_store import LogStore
from flowengine.engine.merged_lines import Portion, TryId, merged
from flowengine.engine.queries import run_info
from flowengine.step_logs.lines import LOG, LogLine, lines_of
from flowengine.store import Store
from flowengine.store.logs import FoundChunk, LogCursor, LoggedTask, StoredPlace
from flowengine.tenants import visible_tenant

PAGE = 500  #: chunks that are looked at, or lines that are passed on, at once
_OVERLAP = 10_000  #: milliseconds; a commit may be seen that much later than others
_SWEEP_SECONDS = 30.0  #: between two looks behind every place
_GAP_SECONDS = 5.0  #: for which lines wait for those before them, from when they were stored
_LATE_SECONDS = 0.6  #: after the end of a run: a worker stores lines within half a second
_FIRST_PAUSE, _LAST_PAUSE, _GROWTH = 0.05, 0.5, 1.5  #: seconds between two looks
_END = 2**62  #: behind the last line of any log


class _Part(NamedTuple):
    """Lines of one chunk."""

    first: int  #: of the chunk
    numbers: list[range]
    entries: list[LogEntry]


class RunLogs:
    """Reads the logs of one database's runs."""

    def __init__(self, database: Store, store: LogStore, bound: str = "") -> None:
        self._database, self._store, self._bound = database, store, bound

    def read(
        self,
        run_id: str,
        *,
        last: int | None = None,
        follow: bool = False,
        timeout: float | None = None,
        tenant: str | None = None,
        **filters: Any,
    ) -> RunLog:
        """Return the lines that the steps of a run have printed and logged, in order of time.

        Filters: `step` (a path, the end of one, or several), `try_number`, `level` (lines of this
        level and above), `grep` (a regular expression), `since` (a datetime, a timedelta, or
        milliseconds), `last` (the number of newest lines). With `follow` it goes on until the run
        has ended, or no line came for `timeout` seconds. Raises UnknownRun and InvalidFilter.
        """
        tenant = visible_tenant(self._bound, tenant)
        with self._database.read() as session:
            run_info(session, run_id, tenant)
            now = session.now()
        if last is not None:
            number_of_rows("last", last, 0)
        wanted = line_filter(now, **filters)
        return RunLog(self._database, self._store, run_id, wanted, last, follow, timeout)


class RunLog:
    """The lines of a run, as a synchronous and an asynchronous iterator."""

    def __init__(
        self,
        database: Store,
        store: LogStore,
        run_id: str,
        wanted: LineFilter,
        last: int | None,
        follow: bool,
        timeout: float | None,
    ) -> None:
        self._database, self._store, self._run_id = database, store, run_id
        self._wanted, self._last, self._follow = wanted, last, follow
        self._timeout = math.inf if timeout is None else timeout
        self._tasks: dict[str, LoggedTask] = {}
        self._places: dict[TryId, TryPlace] = {}
        self._held: dict[TryId, tuple[int, float]] = {}  #: first line behind a gap, and until when
        self._newest = 0  #: when the newest chunk that was seen was stored
        self._clocks = (0, 0.0)  #: of the database and of this process, at the same moment
        self._items = self._all_items()

    def __iter__(self) -> Iterator[LogEntry]:
        for item in self._items:
            if isinstance(item, LogEntry):
                yield item
            else:
                time.sleep(item)

    async def __aiter__(self) -> AsyncIterator[LogEntry]:
        while True:
            entries, pause = await asyncio.to_thread(self.page)
            for entry in entries:
                yield entry
            if pause is None:
                return
            await asyncio.sleep(pause)

    def page(self) -> tuple[list[LogEntry], float | None]:
        """Return some lines, and how long to wait for more; None: there is no more."""
        entries: list[LogEntry] = []
        for item in self._items:
            if not isinstance(item, LogEntry):
                return entries, item
            entries.append(item)
            if len(entries) == PAGE:
                return entries, 0.0
        return entries, None

    # --- lines, and pauses in between ---

    def _all_items(self) -> Iterator[LogEntry | float]:
        with self._database.read() as session:
            self._newest = session.now()
        self._clocks = (self._newest, time.monotonic())
        self._find_tries()
        if self._last is None:
            yield from self._behind(final=not self._follow)
        else:
            yield from self._before_the_end(self._last)
        if not self._follow:
            return
        pause, ends = _FIRST_PAUSE, time.monotonic() + self._timeout
        swept = time.monotonic()
        while time.monotonic() < ends:
            has_ended = self._has_ended()
            if has_ended or time.monotonic() - swept > _SWEEP_SECONDS:
                self._find_tries()
                found: Iterable[LogEntry] = self._behind()
                swept = time.monotonic()
            else:
                found = self._added()
            for entry in found:
                yield entry
                pause, ends = _FIRST_PAUSE, time.monotonic() + self._timeout
            if has_ended:
                break
            yield min(pause, max(0.0, ends - time.monotonic()))
            pause = min(pause * _GROWTH, _LAST_PAUSE)
        else:
            yield from self._merged(list(self._held), lambda _: True, final=True)
            return
        yield _LATE_SECONDS
        self._find_tries()
        yield from self._behind(final=True)

    def _has_ended(self) -> bool:
        with self._database.autocommit_read() as session:
            return run_info(session, self._run_id).is_final

    def _find_tries(self) -> None:
        """Add a place for each try that may have lines."""
        with self._database.read() as session:
            tasks = session.logs.tasks_of(self._run_id)
        self._add_tries(tasks)

    def _add_tries(self, tasks: Iterable[LoggedTask]) -> None:
        for task in tasks:
            self._tasks[task.id] = task
            if self._wanted.wants(task):
                for lease in range(1, task.lease + 1):
                    if (task.id, lease) not in self._places:
                        self._places[task.id, lease] = TryPlace()

    def _entries(self, chunk: FoundChunk) -> list[LogEntry]:
        return entries_of(self._run_id, self._tasks[chunk.task_id], chunk, self._wanted)

    # --- from the beginning, or from the places ---

    def _behind(self, *, final: bool = False) -> Iterator[LogEntry]:
        """Return all lines behind the places, in the order of their times."""
        return self._merged(list(self._places), lambda _: True, final=final)

    def _merged(
        self, keys: Sequence[TryId], has_more: Callable[[TryId], bool], *, final: bool = False
    ) -> Iterator[LogEntry]:
        """Return the lines of these tries behind their places; `final` waits for no others."""
        return merged(keys, lambda keys: self._portions(keys, final), has_more)

    def _portions(self, keys: Iterable[TryId], final: bool) -> list[Portion]:
        """Return the wanted lines of the next chunks of tries, and move their places."""
        cursors = [
            LogCursor(*key, line)
            for key in keys
            for place in (self._places[key],)
            for line in (*(hole.start for hole in place.holes), place.line)
        ]
        found: dict[TryId, list[_Part]] = {}
        for chunk in sorted(set(self._store.next_chunks(cursors))) if cursors else ():
            key, place = (chunk.task_id, chunk.lease), self._places[chunk.task_id, chunk.lease]
            missing, start = place.missing(chunk.first, chunk.line_count), chunk.first
            if not missing:
                continue
            entries = self._entries(chunk)
            if start > place.line:
                lines = lines_of(chunk.body, chunk.first)
                start = accounted_from(lines)
                if start > place.line:
                    if not final and self._waits(key, chunk):
                        continue
                    gap = range(place.line, start)
                    entries[:0] = self._told(key, gap, lines[0].at)
            elif sum(map(len, missing)) < chunk.line_count:
                entries = [e for e in entries if any(e.number in part for part in missing)]
            self._held.pop(key, None)
            place.pass_over(chunk.first, chunk.line_count, start)
            found.setdefault(key, []).append(_Part(chunk.first, missing, entries))
        return [self._portion(key, parts) for key, parts in found.items()]

    def _portion(self, key: TryId, parts: Sequence[_Part]) -> Portion:
        firsts = [LogCursor(*key, part.first) for part in parts]
        wanted = [numbers for part in parts for numbers in part.numbers]

        def again() -> list[LogEntry]:
            chunks = sorted(set(self._store.next_chunks(firsts)))
            entries = [entry for chunk in chunks for entry in self._entries(chunk)]
            return [e for e in entries if any(e.number in numbers for numbers in wanted)]

        entries = [entry for part in parts for entry in part.entries]
        return Portion(key, entries, again)

    def _waits(self, key: TryId, chunk: FoundChunk) -> bool:
        """Whether a chunk waits for lines before it; an old one does not."""
        then, began = self._clocks
        now = time.monotonic()
        age = max(0.0, now - began - (chunk.created - then) / 1000)
        _, ends = self._held.get(key, (0, now + _GAP_SECONDS - age))
        self._held[key] = chunk.first, ends
        return now < ends

    def _told(self, key: TryId, gap: range, at: int) -> list[LogEntry]:
        line = LogLine(gap[-1], at, logging.WARNING, LOG, OWN_LOGGER, untold_text(gap))
        if not self._wanted.admits(line):
            return []
        return [entry_of(self._run_id, self._tasks[key[0]], key[1], line)]

    # --- from the end ---

    def _before_the_end(self, most: int) -> list[LogEntry]:
        """Return the last lines in the order of their times; the places are behind them."""
        ends = self._store.last_places([LogCursor(*key, _END) for key in self._places])
        for end in ends:
            self._places[end[1:3]].line = end.end
        # Lines before the last chunk of a try may be stored later than it: they are new, too.
        recent = [end for end in ends if self._follow and end.created > self._newest - _OVERLAP]
        before = self._store.last_places([LogCursor(*end[1:4]) for end in recent])
        known = {place[1:3]: place.end for place in before}
        for end in recent:
            if gap := range(known.get(end[1:3], 1), end.first):
                self._places[end[1:3]].holes.append(gap)
        return last_lines(self._store, ends, most, self._entries)

    # --- what is added ---

    def _added(self) -> Iterator[LogEntry]:
        """Return the lines of chunks that were stored in the last seconds and not seen yet."""
        stored: dict[TryId, list[StoredPlace]] = {}
        after, is_last = StoredPlace(self._newest - _OVERLAP), False
        while not is_last:
            latest = self._store.latest(self._run_id, after, PAGE)
            is_last = len(latest) < PAGE
            self._find_tries_of(latest)
            for place in latest:
                if self._misses(place):
                    stored.setdefault(place[1:3], []).append(place)
            if latest:
                after = latest[-1]
                self._newest = max(self._newest, after.created)
        now = time.monotonic()
        over = {key for key, (_, ends) in self._held.items() if ends <= now}
        ready = [key for key, places in stored.items() if self._is_ready(key, places)]

        def has_more(key: TryId) -> bool:
            return key in over or any(map(self._misses, stored[key]))

        return self._merged([*over.union(ready)], has_more)

    def _misses(self, place: StoredPlace) -> bool:
        found = self._places.get(place[1:3])
        return found is not None and bool(found.missing(place.first, place.line_count))

    def _is_ready(self, key: TryId, stored: Sequence[StoredPlace]) -> bool:
        """Whether a look may find more than the chunk that is held back already."""
        return key not in self._held or min(place.first for place in stored) < self._held[key][0]

    def _find_tries_of(self, places: Iterable[StoredPlace]) -> None:
        """Add the tries that began since tries were looked for."""
        new = {p.task_id for p in places if p.lease > self._lease(p)}
        if new:
            with self._database.read() as session:
                self._add_tries(session.logs.tasks(new))

    def _lease(self, place: StoredPlace) -> int:
        task = self._tasks.get(place.task_id)
        return 0 if task is None else task.lease
