"""The last lines of the log of a run, read from its end.

No line is written later than its chunk is stored, but for the difference of clocks. So a chunk is
read only when it may have one of the last lines, and of each no more lines are kept than are
wanted: the cost does not grow with the number of tries.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from flowengine.engine.log_entries import LogEntry
from flowengine.engine.log_store import LogStore
from flowengine.store.logs import FoundChunk, LogCursor, StoredPlace

_AHEAD = 10_000  #: milliseconds; the clock of a worker may be that much before the database's
_PORTION = 20  #: chunks that are read at once


def last_lines(
    store: LogStore,
    ends: Sequence[StoredPlace],
    most: int,
    entries_of: Callable[[FoundChunk], list[LogEntry]],
) -> list[LogEntry]:
    """Return the last lines of tries in the order of their times; `ends` are their last chunks."""
    # Of each try: when its next line was written at the latest, an order for lines of one time,
    # the place before which it is read on, and the lines that are read.
    heap: list[tuple[int, int, LogCursor, list[LogEntry]]] = [
        (-place.created - _AHEAD, -number, LogCursor(*place[1:3], place.end), [])
        for number, place in enumerate(ends)
    ]
    heapq.heapify(heap)
    found: list[LogEntry] = []
    while heap and len(found) < most:
        if not heap[0][3]:
            _read_on(store, heap, most - len(found), entries_of)
            continue
        _, order, cursor, entries = heapq.heappop(heap)
        found.append(entries.pop())
        at = (entries or found)[-1].at
        heapq.heappush(heap, (-at, order, cursor, entries))
    return found[::-1]


def _read_on(
    store: LogStore,
    heap: list[tuple[int, int, LogCursor, list[LogEntry]]],
    most: int,
    entries_of: Callable[[FoundChunk], list[LogEntry]],
) -> None:
    """Read the chunks of the tries at the top of the heap; a try without more leaves it."""
    unread: dict[tuple[str, int], tuple[int, int, LogCursor]] = {}
    while heap and not heap[0][3] and len(unread) < _PORTION:
        latest, order, cursor, _ = heapq.heappop(heap)
        unread[cursor[:2]] = latest, order, cursor
    for chunk in store.last_chunks([cursor for _, _, cursor in unread.values()]):
        latest, order, cursor = unread[chunk[:2]]
        # A chunk may overlap others: the tail of a try may be stored by two processes.
        entries = [entry for entry in entries_of(chunk) if entry.number < cursor.line][-most:]
        at = -entries[-1].at if entries else latest
        heapq.heappush(heap, (at, order, LogCursor(*chunk[:2], chunk.first), entries))
