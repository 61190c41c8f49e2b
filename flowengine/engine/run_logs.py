"""Read the log of a run: what there is, in the order of time, and what is added.

The place of a reader is one cursor for each try. So it does not matter in which order chunks are
committed: a chunk that comes late is behind the cursor of its try. A reader that follows asks for
the chunks that were stored in the last seconds, which costs the same however long the log is, and
from time to time looks behind every cursor.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from flowengine.engine.filter_values import number_of_rows
from flowengine.engine.log_entries import LineFilter, LogEntry, entries_of, line_filter
from flowengine.engine.log_store import LogStore
from flowengine.engine.queries import run_info
from flowengine.store import Store
from flowengine.store.logs import FoundChunk, LogCursor, LoggedTask
from flowengine.tenants import visible_tenant

TryId = tuple[str, int]  #: of a task, and its lease
PAGE = 500  #: chunks that are looked at, or lines that are passed on, at once
_OVERLAP = 10_000  #: milliseconds; a commit may be seen that much later than others
_SWEEP_SECONDS = 30.0  #: between two looks behind every cursor
_LATE_SECONDS = 0.6  #: after the end of a run: a worker stores lines within half a second
_FIRST_PAUSE, _LAST_PAUSE, _GROWTH = 0.05, 0.5, 1.5  #: seconds between two looks
_END = 2**62  #: behind the last line of any log


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
        milliseconds), `last` (so many lines at most). With `follow` it goes on until the run has
        ended, or no line came for `timeout` seconds. Raises UnknownRun and InvalidFilter.
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
        self._cursors: dict[TryId, int] = {}  #: the number of the next line of each try
        self._newest = 0  #: when the newest chunk that was seen was stored
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
        self._find_tries()
        yield from self._behind() if self._last is None else self._before_the_end(self._last)
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
            return
        yield _LATE_SECONDS
        self._find_tries()
        yield from self._behind()

    def _has_ended(self) -> bool:
        with self._database.autocommit_read() as session:
            return run_info(session, self._run_id).is_final

    def _find_tries(self) -> None:
        """Add a cursor for each try that may have lines."""
        with self._database.read() as session:
            tasks = session.logs.tasks_of(self._run_id)
        self._add_tries(tasks)

    def _add_tries(self, tasks: Iterable[LoggedTask]) -> None:
        for task in tasks:
            self._tasks[task.id] = task
            if self._wanted.wants(task):
                for lease in range(1, task.lease + 1):
                    self._cursors.setdefault((task.id, lease), 1)

    def _entries(self, chunk: FoundChunk) -> list[LogEntry]:
        return entries_of(self._run_id, self._tasks[chunk.task_id], chunk, self._wanted)

    # --- from the beginning, or from the cursors ---

    def _behind(self) -> Iterator[LogEntry]:
        """Return all lines behind the cursors, in the order of their times."""
        heap: list[tuple[int, int, TryId, deque[LogEntry]]] = []
        order = 0

        def load(cursors: Sequence[LogCursor]) -> None:
            nonlocal order
            for chunk in self._next_wanted(cursors):
                order += 1
                entries = deque(self._entries(chunk))
                heapq.heappush(heap, (_time(entries), order, chunk[:2], entries))

        load([LogCursor(*key, line) for key, line in self._cursors.items()])
        while heap:
            _, place, key, entries = heapq.heappop(heap)
            if not entries:
                load([LogCursor(*key, self._cursors[key])])
                continue
            yield entries.popleft()
            heapq.heappush(heap, (_time(entries), place, key, entries))

    def _next_wanted(self, cursors: Sequence[LogCursor]) -> list[FoundChunk]:
        chunks = self._store.next_chunks(cursors)
        for chunk in chunks:
            self._cursors[chunk.task_id, chunk.lease] = chunk.first + chunk.line_count
        return chunks

    # --- from the end ---

    def _before_the_end(self, most: int) -> list[LogEntry]:
        """Return the last lines in the order of their times; the cursors are behind them."""
        heap: list[tuple[int, int, TryId, int, list[LogEntry]]] = []
        ends: dict[TryId, int] = {}
        order = 0

        def load(cursors: Sequence[LogCursor]) -> list[FoundChunk]:
            nonlocal order
            chunks = self._store.last_chunks(cursors)
            for chunk in chunks:
                order -= 1
                # A chunk may overlap others: the tail of a try may be stored by two processes.
                end = ends.get(chunk[:2], _END)
                entries = [entry for entry in self._entries(chunk) if entry.number < end]
                ends[chunk[:2]] = chunk.first
                at = -entries[-1].at if entries else -_END
                heapq.heappush(heap, (at, order, chunk[:2], chunk.first, entries))
            return chunks

        for chunk in load([LogCursor(*key, _END) for key in self._cursors]):
            self._cursors[chunk.task_id, chunk.lease] = chunk.first + chunk.line_count
        found: list[LogEntry] = []
        while heap and len(found) < most:
            _, place, key, first, entries = heapq.heappop(heap)
            if not entries:
                load([LogCursor(*key, first)])
                continue
            found.append(entries.pop())
            at = -entries[-1].at if entries else -_END
            heapq.heappush(heap, (at, place, key, first, entries))
        return found[::-1]

    # --- what is added ---

    def _added(self) -> list[LogEntry]:
        """Return the lines of chunks that were stored in the last seconds and not seen yet."""
        since, found = self._newest - _OVERLAP, list[LogEntry]()
        while True:
            latest = self._store.latest(self._run_id, since, PAGE)
            found += self._unseen([key for key, _ in latest])
            if not latest:
                break
            newest = latest[-1][1]
            self._newest = max(self._newest, newest)
            if len(latest) < PAGE:
                break
            since = newest + (newest == since)
        return sorted(found, key=lambda entry: entry.at)

    def _unseen(self, keys: Sequence[LogCursor]) -> list[LogEntry]:
        unknown = {key.task_id for key in keys} - self._tasks.keys()
        late = {k.task_id for k in keys if k.task_id not in unknown and k.lease > self._lease(k)}
        if unknown or late:
            with self._database.read() as session:
                self._add_tries(session.logs.tasks(unknown | late))
        wanted = [key for key in keys if key.line >= self._cursors.get(key[:2], _END)]
        if not wanted:
            return []
        found: list[LogEntry] = []
        for chunk in sorted(self._store.chunks(wanted)):
            if chunk.first >= self._cursors[chunk.task_id, chunk.lease]:
                self._cursors[chunk.task_id, chunk.lease] = chunk.first + chunk.line_count
                found += self._entries(chunk)
        return found

    def _lease(self, key: LogCursor) -> int:
        return self._tasks[key.task_id].lease


def _time(entries: deque[LogEntry]) -> int:
    """Return when the first line was written; without lines the next chunk is loaded first."""
    return entries[0].at if entries else 0
