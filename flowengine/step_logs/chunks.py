"""Chunks: neighbouring lines of one try that are stored together."""

from __future__ import annotations

from typing import NamedTuple

from flowengine.step_logs.lines import body_of

CHUNK_BYTES = 64 * 1024  #: of the body of a chunk, at most


class TryKey(NamedTuple):
    """A try: a task under one lease."""

    run_id: str
    task_id: str
    lease: int


class LogChunk(NamedTuple):
    """A chunk as it is stored. Its key is the try and the number of its first line.

    Invariant: the lines of a key never change, so a chunk that is stored twice is stored once.
    """

    run_id: str
    task_id: str
    lease: int
    first: int
    line_count: int
    body: str


class ChunkLines:
    """The lines of a chunk that grows."""

    __slots__ = ("count", "first", "key", "lines", "prefix", "size")

    def __init__(self, key: TryKey, first: int) -> None:
        self.key, self.first = key, first
        #: Of its lines in files.
        self.prefix = f'["{key.run_id}","{key.task_id}",{key.lease},{first},'
        self.lines: list[str] | None = []  #: None: they are in the file alone
        self.count, self.size = 0, 2

    def takes(self, number: int, line: str) -> bool:
        """Whether a line belongs to this chunk: it is the next one, and there is room."""
        return number == self.first + self.count and self.size + len(line) < CHUNK_BYTES

    def add(self, line: str) -> None:
        self.lines.append(line)  # type: ignore[union-attr]  # those of a chunk that grows
        self.count += 1
        self.size += len(line) + 1

    def stored(self) -> LogChunk:
        assert self.lines is not None
        return LogChunk(*self.key, self.first, self.count, body_of(self.lines))
