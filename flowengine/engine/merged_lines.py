"""The lines of many tries in the order of their times, with a bounded part of them in memory.

Of each try the next chunk is read. If these have more lines than are held at once, those that are
needed last are dropped, and read again when their time has come.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter

from flowengine.engine.log_entries import LogEntry

TryId = tuple[str, int]  #: of a task, and its lease
HELD_CHARACTERS = 16 * 1024 * 1024  #: of lines that are held at once
_LINE = 100  #: characters that a line counts beside its text
_TRIES = 100  #: whose next chunks are read at once


class Portion:
    """The next lines of one try."""

    __slots__ = ("_again", "_is_dropped", "_size", "entries", "key")

    def __init__(
        self, key: TryId, entries: Sequence[LogEntry], again: Callable[[], list[LogEntry]]
    ) -> None:
        """`again` reads the lines once more."""
        self.key, self.entries = key, deque(entries)
        self._size = sum(len(entry.text) + _LINE for entry in entries)
        self._again, self._is_dropped = again, False

    @property
    def time(self) -> int:
        """When the first line was written; without lines the next chunk is read first."""
        return self.entries[0].at if self.entries else 0

    @property
    def held(self) -> int:
        """The size of what could be dropped."""
        return self._size if len(self.entries) > 1 else 0

    def drop(self) -> None:
        """Forget all lines but the first, which has the time."""
        if len(self.entries) > 1:
            self.entries, self._is_dropped = deque([self.entries[0]]), True

    def pop(self) -> LogEntry:
        entry = self.entries.popleft()
        if self._is_dropped:
            self.entries.extend(e for e in self._again() if e.number > entry.number)
            self._is_dropped = False
        return entry


def merged(
    keys: Sequence[TryId],
    load: Callable[[Sequence[TryId]], Iterable[Portion]],
    has_more: Callable[[TryId], bool],
) -> Iterator[LogEntry]:
    """Return the lines of tries; `load` returns their next portions, those that have one."""
    heap: list[tuple[int, int, Portion]] = []
    order = held = 0

    def add(portions: Iterable[Portion]) -> None:
        nonlocal order, held
        for portion in portions:
            order += 1
            held += portion.held
            heapq.heappush(heap, (portion.time, order, portion))

    for at in range(0, len(keys), _TRIES):
        add(load(keys[at : at + _TRIES]))
        held = _limited(heap, held)
    while heap:
        _, place, portion = heapq.heappop(heap)
        held -= portion.held
        if portion.entries:
            yield portion.pop()
            held += portion.held
            heapq.heappush(heap, (portion.time, place, portion))
        elif has_more(portion.key):
            add(load([portion.key]))
        held = _limited(heap, held)


def _limited(heap: list[tuple[int, int, Portion]], held: int) -> int:
    """Drop what is needed last if too much is held; return how much is held then.

    Half of it stays, so that this is rare.
    """
    if held > HELD_CHARACTERS:
        for _, _, portion in sorted(heap, key=itemgetter(0, 1), reverse=True):
            if held <= HELD_CHARACTERS // 2:
                break
            held -= portion.held
            portion.drop()
    return held
