"""Chunks that are not stored yet, and the files that have their lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from flowengine.step_logs.cap import loss_text
from flowengine.step_logs.chunks import ChunkLines, LogChunk, TryKey
from flowengine.step_logs.lines import body_of, notice_line
from flowengine.step_logs.segments import Seal, Segment, chunks_of
from flowengine.step_logs.tail_files import TailFiles

_UNREADABLE = "their file cannot be read"


class PendingChunk:
    """A chunk that is not stored.

    Invariant: the segment, or the files of a tail, have all its lines; or memory alone has them.
    """

    __slots__ = ("content", "is_closed", "is_taken", "segment", "since", "tail")

    def __init__(
        self, content: ChunkLines, segment: Segment | None, tail: TailFiles | None = None
    ) -> None:
        self.content, self.segment, self.tail = content, segment, tail
        self.is_closed = False  #: it grows no more
        self.is_taken = False  #: somebody is storing it
        self.since = time.monotonic()

    def takes(self, number: int, line: str) -> bool:
        """Whether a line belongs to this chunk."""
        return not self.is_closed and self.content.takes(number, line)

    @property
    def key(self) -> TryKey:
        return self.content.key

    @property
    def size(self) -> int:
        return self.content.size

    @property
    def lines(self) -> list[str] | None:
        return self.content.lines


def stored_forms(chunks: Sequence[PendingChunk], unseal: Seal) -> list[LogChunk]:
    """Return chunks as they are stored; lines that are only in a file are read."""
    forms = [chunk.content.stored() for chunk in chunks if chunk.lines is not None]
    if forgotten := [chunk for chunk in chunks if chunk.lines is None]:
        forms += _read_again(forgotten, unseal)
    # In the order of their keys: two statements that store the same ones do not deadlock.
    return sorted(forms)


def _read_again(chunks: Sequence[PendingChunk], unseal: Seal) -> list[LogChunk]:
    wanted = {(chunk.key, chunk.content.first) for chunk in chunks}
    found: list[LogChunk] = []
    for path in {chunk.segment.path for chunk in chunks if chunk.segment is not None}:
        with suppress(OSError):
            found += chunks_of(path, unseal, wanted)
    return [form for chunk in chunks for form in _whole(chunk.content, found)]


def _whole(chunk: ChunkLines, found: Sequence[LogChunk]) -> list[LogChunk]:
    """Return the forms of one chunk that were read from its file, and tell what is missing."""
    behind = chunk.first + chunk.count
    of_try = [form for form in found if form[:3] == chunk.key]
    forms = sorted(form for form in of_try if chunk.first <= form.first < behind)
    missing, place = chunk.count - sum(form.line_count for form in forms), chunk.first
    if missing:
        for form in forms:
            if form.first == place:
                place += form.line_count
        notice = notice_line(time.time_ns() // 1_000_000, loss_text(missing, _UNREADABLE))
        forms.append(LogChunk(*chunk.key, place, 1, body_of([notice])))
    return forms
