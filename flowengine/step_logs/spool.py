"""The spool of lines of one process: chunks that are not stored yet, in memory and in its segments.

Every line is written to a segment before anything else happens to it. A chunk is stored by whoever
takes it first: the report of its try, or the thread that delivers chunks. While neither can, lines
stay in the segments, up to a limit; memory holds a bounded part of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from flowengine.fork import at_fork
from flowengine.log_filter import safe_logger
from flowengine.step_logs.chunks import CHUNK_BYTES, ChunkLines, LogChunk, TryKey
from flowengine.step_logs.pending_chunks import PendingChunk, stored_forms
from flowengine.step_logs.segments import Seal, Segment
from flowengine.step_logs.tail_files import TailFiles, tail_chunks

log = safe_logger("flowengine")

SEGMENT_BYTES = 8 * 1024 * 1024  #: after which another file begins
_CLEARED_BYTES = 256 * 1024  #: after which a file is cleared as soon as all of it is stored
_MEMORY_BYTES = 8 * 1024 * 1024  #: of lines in memory, beside chunks that still grow
TAKEN_BYTES = 1024 * 1024  #: that one statement stores


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
        self.is_durable = directory is not None  #: lines are in files, and stored without a report
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending: dict[PendingChunk, None] = {}  #: in the order in which they began
        self._segments: list[Segment] = []  #: the last one is written to
        self._tails: list[TailFiles] = []
        self._unended: dict[Callable[[], object], float] = {}  #: late lines, with their time
        self._memory = 0
        self._problem: object = None
        self._has_noted = self.is_closed = False
        at_fork(in_child=self._abandon)

    # --- lines ---

    def grow(self, chunk: PendingChunk, number: int, line: str) -> bool:
        """Add a line to the chunk of its try if that is all there is to do: most lines.

        Invariant: a segment that is not full is the last one. False: nothing is changed, but a
        line may have been cut off in the file.
        """
        with self._lock:
            content, segment = chunk.content, chunk.segment
            size = len(line)
            if (
                segment is None
                or chunk.is_closed
                or number != content.first + content.count
                or content.size + size >= CHUNK_BYTES
                or segment.size >= SEGMENT_BYTES
            ):
                return False
            try:
                segment.append(content, number, line)
            except Exception as problem:  # also one of the payload codec, which is not ours
                self._note(problem)
                return False
            content.add(line)
            self._memory += size
            return True

    def append(
        self, chunk: PendingChunk | None, key: TryKey, number: int, line: str, *, force: bool
    ) -> PendingChunk | None:
        """Add a line to a chunk of its try, or to a new one; return it. None: the line is lost.

        With `force` a line is never lost, whatever the limits are.
        """
        with self._lock:
            if self.is_closed:
                return None
            added = self._written(chunk, key, number, line) or self._held(
                chunk, key, number, line, force=force
            )
            if added is None:
                return None
            added.content.add(line)
            self._memory += len(line)
            if added is not chunk:
                if chunk is not None:
                    self._close(chunk)
                if added.segment is not None:
                    added.segment.unsent += 1
                self._add(added)
            return added

    def _add(self, chunk: PendingChunk) -> None:
        self._pending[chunk] = None
        # For each: chunks that a report has taken are no reason for the thread to look.
        self.wake()

    def _written(
        self, chunk: PendingChunk | None, key: TryKey, number: int, line: str
    ) -> PendingChunk | None:
        """Write a line to the file; return its chunk, or None."""
        if (segment := self._segment()) is None:
            return None
        if chunk is None or chunk.segment is not segment or not chunk.takes(number, line):
            chunk = PendingChunk(ChunkLines(key, number), segment)
        try:
            segment.append(chunk.content, number, line)
        except Exception as problem:  # also one of the payload codec, which is not ours
            self._note(problem)
            return None
        return chunk

    def _held(
        self, chunk: PendingChunk | None, key: TryKey, number: int, line: str, *, force: bool
    ) -> PendingChunk | None:
        """Return the chunk of a line that memory alone has; None: there is no room.

        Invariant: the file has all lines of a chunk, or none.
        """
        # Without a directory the report of each try takes all its lines, which its cap limits.
        is_full = self._memory + len(line) > _MEMORY_BYTES and self.is_durable
        if is_full and not force:
            return None
        if chunk is not None and chunk.segment is None and chunk.takes(number, line):
            return chunk
        return PendingChunk(ChunkLines(key, number), None)

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
            self._note(f"they have {self._max_bytes:,} bytes, the limit max_log_spool_bytes")
            return None
        try:
            self._segments.append(Segment(self._directory, self._scope, self._seal))
        except OSError as problem:
            self._note(problem)
            return None
        return self._segments[-1]

    def _note(self, problem: object) -> None:
        if not self._has_noted:
            self._has_noted, self._problem = True, problem
            self.wake()

    def tell_problem(self) -> None:
        """Log the first reason why lines are not in files. Not by a step: it holds locks."""
        problem, self._problem = self._problem, None
        if problem is not None:
            log.warning(
                "lines of steps cannot be written to %s: %s; they are kept in memory while there "
                "is room, and the others are lost; free space in the spool directory",
                *(self._directory, problem),
                extra={"action": "log_spool_full"},
            )

    def _close(self, chunk: PendingChunk) -> None:
        """Let a chunk grow no more; above the limit of memory the file alone has its lines."""
        if not chunk.is_closed:
            chunk.is_closed = True
            if self._memory > _MEMORY_BYTES and chunk.segment and not chunk.is_taken:
                self._forget(chunk)

    def _forget(self, chunk: PendingChunk) -> None:
        if chunk.lines is not None:
            self._memory -= sum(map(len, chunk.lines))
            chunk.content.lines = None

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
                    files.is_whole = False
                    self._note(problem)

    def end_tail(
        self, key: TryKey, tail: Sequence[tuple[int, str]], first: int, files: TailFiles | None
    ) -> list[PendingChunk]:
        """Return the chunks of the last lines. Their files stay until all of them are stored.

        Invariant: a reader of the files makes the same chunks, so a kill leaves them once. If
        memory has no room for them the files are left to such a reader.
        """
        with self._changed:
            if self.is_closed:
                return []
            size = sum(len(line) for _, line in tail)
            if files and files.is_whole and self._memory + size > _MEMORY_BYTES:
                self._tails.remove(files)
                files.close()
                return []
            chunks = [PendingChunk(one, None, files) for one in tail_chunks(tail, key, first)]
            if files is not None:
                files.unsent = len(chunks)
            for chunk in chunks:
                chunk.is_closed = True
                self._memory += sum(map(len, chunk.lines or ()))
                self._add(chunk)
            return chunks

    # --- chunks ---

    def take(self, most: int = TAKEN_BYTES, *, before: float = inf) -> list[PendingChunk]:
        """Take the oldest chunks that nobody stores, for one statement.

        `before` leaves those that began later: the report of a quick try takes them.
        """
        self._end_lines(before)
        with self._changed:
            size = 0
            taken: list[PendingChunk] = []
            for chunk in self._pending:
                if chunk.is_taken:
                    continue
                if chunk.since > before or (taken and size + chunk.size > most):
                    break
                size += chunk.size
                taken.append(chunk)
            self._take(taken)
            return taken

    def end_later(self, end_line: Callable[[], object]) -> None:
        """Have a late line ended that no newline ends, once no more of it can be expected."""
        with self._lock:
            if not self.is_closed:
                self._unended.setdefault(end_line, time.monotonic())
                self.wake()

    def _end_lines(self, before: float) -> None:
        with self._lock:
            due = [end_line for end_line, since in self._unended.items() if since <= before]
            for end_line in due:
                del self._unended[end_line]
        for end_line in due:  # without the lock: that of a log is taken first
            end_line()

    def take_try(self, chunks: Sequence[PendingChunk], seconds: float) -> list[PendingChunk]:
        """Take the chunks of a try; wait up to `seconds` for a delivery that has some of them.

        None are returned if that does not end in time: chunks of a try are stored in order.
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
        return stored_forms(chunks, self._unseal)

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
                if (files := chunk.tail) is not None:
                    files.unsent -= 1
                    if not files.unsent and files in self._tails:
                        self._tails.remove(files)
                        files.remove()
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
            self._has_noted = False
        elif segment.size >= least:
            segment.clear()

    def is_pending(self, chunk: PendingChunk) -> bool:
        return chunk in self._pending

    @property
    def has_pending(self) -> bool:
        return bool(self._pending or self._unended)

    @property
    def has_waiting(self) -> bool:
        """Whether there are chunks that nobody stores now, or lines that are not ended."""
        with self._changed:
            return bool(self._unended) or any(not chunk.is_taken for chunk in self._pending)

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
            self._unended.clear()

    def _abandon(self) -> None:
        """Give all this up in a forked child: the files and the lines are the parent's."""
        self.is_closed = True
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        for segment in self._segments:
            segment.close()
        for files in self._tails:
            files.close()
        self._segments, self._pending, self._tails, self._unended = [], {}, [], {}
