"""The spool of lines of one process: chunks that are not stored yet, in memory and in its segments.

Every line is written to a segment before anything else happens to it. A chunk is stored by whoever
takes it first: the report of its try, or the thread that delivers chunks. While neither can, lines
stay in the segments, up to a limit; memory holds a bounded part of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from flowengine.fork import at_fork
from flowengine.log_filter import safe_logger
from flowengine.step_logs.chunks import ChunkLines, LogChunk, TryKey
from flowengine.step_logs.segments import Seal, Segment, chunks_of
from flowengine.step_logs.tail_files import TailFiles

log = safe_logger("flowengine")

SEGMENT_BYTES = 8 * 1024 * 1024  #: after which another file begins
_CLEARED_BYTES = 256 * 1024  #: after which a file is cleared as soon as all of it is stored
_MEMORY_BYTES = 8 * 1024 * 1024  #: of lines in memory, beside chunks that still grow
TAKEN_BYTES = 1024 * 1024  #: that one statement stores


class PendingChunk(ChunkLines):
    """A chunk that is not stored, and the segment that has its lines."""

    __slots__ = ("is_in_file", "is_taken", "segment")

    def __init__(self, key: TryKey, first: int, segment: Segment | None) -> None:
        super().__init__(key, first)
        self.segment = segment
        self.is_in_file = segment is not None  #: all its lines
        self.is_taken = False  #: somebody is storing it


def _are_taken(chunks: Sequence[PendingChunk]) -> bool:
    return any(chunk.is_taken for chunk in chunks)


class LogSpool:
    """The unstored chunks of a process. Shared by all its threads."""

    def __init__(
        self,
        directory: Path | None,
        *,
        scope: str = "",
        max_bytes: int = 0,
        seal: Seal = str,
        unseal: Seal = str,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        """`scope` names the database; `wake` is called for each chunk that begins to wait.

        Without a directory lines are in memory alone.
        """
        self._directory, self._scope, self._max_bytes = directory, scope, max_bytes
        self._seal, self._unseal, self.wake = seal, unseal, wake
        self._changed = threading.Condition()
        self._pending: dict[PendingChunk, None] = {}  #: in the order in which they began
        self._segments: list[Segment] = []  #: the last one is written to
        self._tails: list[TailFiles] = []
        self._memory = 0
        self._has_warned = self.is_closed = False
        at_fork(in_child=self._abandon)

    # --- lines ---

    def append(
        self, chunk: PendingChunk | None, key: TryKey, number: int, line: str, *, force: bool
    ) -> PendingChunk | None:
        """Add a line to a chunk of its try, or to a new one; return it. None: the line is lost.

        With `force` a line is never lost, whatever the limits are.
        """
        with self._changed:
            if self.is_closed:
                return None
            segment = self._segment()
            if chunk is not None and (
                chunk.segment is not segment or not chunk.takes(number, line)
            ):
                self._close(chunk)
                chunk = None
            is_new = chunk is None
            if chunk is None:
                chunk = PendingChunk(key, number, segment)
            is_kept = segment is not None and self._write(segment, chunk, number, line)
            if not is_kept:
                if self._memory + chunk.size > _MEMORY_BYTES and not force:
                    return None
                chunk.is_in_file = False  # it stays in memory
            chunk.add(line)
            self._memory += len(line)
            if is_new:
                self._pending[chunk] = None
                if segment is not None:
                    segment.unsent += 1
                # Always: chunks that a report has taken are no reason for the thread to look.
                self.wake()
            return chunk

    def _write(self, segment: Segment, chunk: PendingChunk, number: int, line: str) -> bool:
        try:
            segment.append(chunk, number, line)
        except Exception as problem:  # also one of the payload codec, which is not ours
            self._warn(problem)
            return False
        return True

    def _segment(self) -> Segment | None:
        """Return the file for the next line; None: there is no room."""
        if self._directory is None:
            return None
        current = self._segments[-1] if self._segments else None
        if current is not None and current.size >= SEGMENT_BYTES and not current.unsent:
            current.clear()
        if current is not None and current.size < SEGMENT_BYTES:
            return current
        if sum(segment.size for segment in self._segments) >= self._max_bytes:
            self._warn(f"they have {self._max_bytes:,} bytes, the limit max_log_spool_bytes")
            return None
        try:
            self._segments.append(Segment(self._directory, self._scope, self._seal))
        except OSError as problem:
            self._warn(problem)
            return None
        return self._segments[-1]

    def _warn(self, problem: object) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "lines of steps cannot be written to %s: %s; they are kept in memory while there "
                "is room, and the others are lost; free space in the spool directory",
                self._directory,
                problem,
                extra={"action": "log_spool_full"},
            )

    def _close(self, chunk: PendingChunk) -> None:
        """Let a chunk grow no more; above the limit of memory the file alone has its lines."""
        if not chunk.is_closed:
            chunk.is_closed = True
            if self._memory > _MEMORY_BYTES and chunk.is_in_file and not chunk.is_taken:
                self._forget(chunk)

    def _forget(self, chunk: PendingChunk) -> None:
        if chunk.lines is not None:
            self._memory -= sum(map(len, chunk.lines))
            chunk.lines = None

    # --- tails ---

    def tail_files(self, key: TryKey, first: int) -> TailFiles | None:
        """Return the files for the last lines of a try, whose log is too long from `first` on."""
        if self._directory is None:
            return None
        files = TailFiles(self._directory, self._scope, key, self._seal, first)
        self._tails.append(files)
        return files

    def add_to_tail(self, files: TailFiles, number: int, line: str, most: int) -> None:
        with self._changed:
            if not self.is_closed:
                try:
                    files.add(number, line, most)
                except Exception as problem:
                    self._warn(problem)

    def remove_tail(self, files: TailFiles) -> None:
        with self._changed:
            files.remove()
            if files in self._tails:
                self._tails.remove(files)

    # --- chunks ---

    def take(self, most: int = TAKEN_BYTES) -> list[PendingChunk]:
        """Take the oldest chunks that nobody stores, for one statement."""
        with self._changed:
            size = 0
            taken: list[PendingChunk] = []
            for chunk in self._pending:
                if chunk.is_taken:
                    continue
                if taken and size + chunk.size > most:
                    break
                size += chunk.size
                taken.append(chunk)
            self._take(taken)
            return taken

    def take_try(self, chunks: Sequence[PendingChunk], seconds: float) -> list[PendingChunk]:
        """Take the chunks of a try; waits so long for the end of a delivery that has some.

        None are returned if it does not end: chunks of a try are stored in order.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not _are_taken(chunks), timeout=seconds):
                return []
            taken = [c for c in chunks if c in self._pending]
            self._take(taken)
            return taken

    def _take(self, chunks: Sequence[PendingChunk]) -> None:
        for chunk in chunks:
            chunk.is_closed = chunk.is_taken = True

    def stored_form(self, chunks: Sequence[PendingChunk]) -> list[LogChunk]:
        """Return taken chunks as they are stored; lines that are only in the file are read."""
        found: dict[tuple[object, ...], LogChunk] = {}
        for path in {c.segment.path for c in chunks if c.lines is None and c.segment is not None}:
            wanted = {(c.key, c.first) for c in chunks if c.lines is None}
            found |= {one[:4]: one for one in chunks_of(path, self._unseal, wanted)}
        forms = [found.get((*c.key, c.first)) if c.lines is None else c.stored() for c in chunks]
        # In the order of their keys: two statements that store the same ones do not deadlock.
        return sorted(form for form in forms if form is not None)

    def delivered(self, chunks: Sequence[PendingChunk]) -> None:
        """Forget chunks that are stored."""
        with self._changed:
            for chunk in chunks:
                if chunk not in self._pending:
                    continue
                del self._pending[chunk]
                chunk.is_taken = False
                self._forget(chunk)
                if (segment := chunk.segment) is not None:
                    segment.unsent -= 1
                    self._tidy(segment)
            self._changed.notify_all()

    def give_back(self, chunks: Sequence[PendingChunk]) -> None:
        """Leave chunks that could not be stored to the next delivery."""
        with self._changed:
            for chunk in chunks:
                chunk.is_taken = False
            if chunks:
                self.wake()
            self._changed.notify_all()

    def _tidy(self, segment: Segment, least: int = _CLEARED_BYTES) -> None:
        if segment.unsent:
            return
        if segment is not self._segments[-1]:
            segment.remove()
            self._segments.remove(segment)
            self._has_warned = False
        elif segment.size >= least:
            segment.clear()

    def is_pending(self, chunk: PendingChunk) -> bool:
        return chunk in self._pending

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def idle(self) -> None:
        """Clear the file if all of it is stored."""
        with self._changed:
            if self._segments:
                self._tidy(self._segments[-1], least=1)

    # --- the end ---

    def close(self) -> None:
        """Remove the files, or leave those to others that have lines which are not stored."""
        with self._changed:
            self.is_closed = True
            for segment in self._segments:
                if segment.unsent:
                    segment.close()
                else:
                    segment.remove()
            for files in self._tails:
                files.close()
            self._segments.clear()
            self._pending.clear()

    def _abandon(self) -> None:
        """Give all this up in a forked child: the files and the lines are the parent's."""
        self.is_closed = True
        self._changed = threading.Condition()
        for segment in self._segments:
            segment.close()
        for files in self._tails:
            files.close()
        self._segments, self._pending, self._tails = [], {}, []
