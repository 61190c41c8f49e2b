"""The log of one try: its lines are redacted, numbered, capped, and added to chunks."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from time import perf_counter, time_ns

from flowengine.step_logs.cap import Cap, loss_text
from flowengine.step_logs.chunks import TryKey
from flowengine.step_logs.lines import (
    LINE_BYTES,
    LOG,
    SHORT,
    STREAM_LEVELS,
    LineBuffer,
    encoded_line,
    notice_line,
    pieces,
)
from flowengine.step_logs.pending_chunks import PendingChunk
from flowengine.step_logs.redaction import Redactor
from flowengine.step_logs.spool import LogSpool
from flowengine.step_logs.tail_files import TailFiles

_LOSS = "the spool of lines was full"
_WAIT_SECONDS = 5.0  # for the end of a delivery that has lines of this try


class TryLog:
    """Shared by the threads of a try. Nothing that it does may fail the step."""

    def __init__(
        self,
        spool: LogSpool,
        key: TryKey,
        redactor: Redactor,
        head_bytes: int,
    ) -> None:
        self._spool, self._key, self._redactor = spool, key, redactor
        self._has_own_secrets = False
        self._lock = threading.RLock()
        self._buffers: dict[str, LineBuffer] = {}
        self._cap = Cap(head_bytes)
        self._tail: TailFiles | None = None
        self._tail_first = 0  #: the first line that is not among the first bytes, if there is one
        self._is_ended = False
        self._chunk: PendingChunk | None = None
        self._chunks: list[PendingChunk] = []  #: not known to be stored
        self.line_count = 0
        self.seconds = 0.0  #: that its lines took: not work of the step
        self._lost = 0

    @property
    def _is_over(self) -> bool:
        """Whether nobody will store more lines of this log.

        Closed is the spool of a forked child, too, whose copy of the lock may be held.
        """
        return self._spool.is_closed or (self._is_ended and not self._spool.is_durable)

    # --- lines ---

    def write(self, stream: str, text: str) -> None:
        """Add what was written to a stream; lines may come in parts."""
        if self._spool.is_closed or (self._is_ended and self._is_over):
            return
        with self._lock:
            buffer = self._buffers.get(stream)
            if buffer is None:
                buffer = self._buffers[stream] = LineBuffer()
            if "\n" not in text:
                buffer.add(text)
                if buffer.size > LINE_BYTES:
                    self._cut(buffer, stream)
                if self._is_ended:
                    self._spool.end_later(self._end_lines)
                return
            began = perf_counter()
            level = STREAM_LEVELS[stream]
            for line in buffer.lines(text):
                self._add(level, stream, "", line)
            if buffer.size:
                if buffer.size > LINE_BYTES:
                    self._cut(buffer, stream)
                if self._is_ended:
                    self._spool.end_later(self._end_lines)
            self.seconds += perf_counter() - began

    def _cut(self, buffer: LineBuffer, stream: str) -> None:
        for line in buffer.overflow(self._redactor.redacted, self._redactor.overlap):
            self._add(STREAM_LEVELS[stream], stream, "", line)

    def record(self, level: int, logger: str, text: str) -> None:
        """Add the lines of a log record."""
        if self._is_over:
            return
        with self._lock:
            began = perf_counter()
            for line in text.splitlines() or [""]:
                self._add(int(level), LOG, logger, line)
            self.seconds += perf_counter() - began

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """Mask these texts in the lines that follow."""
        if self._spool.is_closed:
            return
        with self._lock:
            if not self._has_own_secrets:
                self._redactor, self._has_own_secrets = self._redactor.with_more(), True
            self._redactor.add(secrets)

    def _add(self, level: int, stream: str, logger: str, text: str) -> None:
        at = time_ns() // 1_000_000
        text = self._redactor.redacted(text)
        if len(text) <= SHORT:
            self.line_count += 1
            self._place(self.line_count, encoded_line(at, level, stream, logger, text))
            return
        more = len(text)
        for piece in pieces(text):
            self.line_count = number = self.line_count + 1
            more -= len(piece)
            if self._cap.leaves_out(more):
                self._open_tail(number)
            else:
                self._place(number, encoded_line(at, level, stream, logger, piece))

    def _place(self, number: int, line: str) -> None:
        """Add a line to the first ones or to the last ones."""
        if self._cap.admits(number, line):
            if self._chunk is None or not self._spool.grow(self._chunk, number, line):
                self._append(number, line)
        elif self._is_ended:
            self._cap.take_tail()  # nobody would store it
        else:
            self._open_tail(number)
            if self._tail is not None:
                self._spool.add_to_tail(self._tail, number, line, self._cap.tail_bytes)

    def _open_tail(self, number: int) -> None:
        if not self._tail_first and not self._is_ended:
            self._tail_first = number
            self._tail = self._spool.tail_files(self._key, number)

    def _append(self, number: int, line: str) -> None:
        if self._lost and self._append_line(number - 1, self._notice(loss_text(self._lost, _LOSS))):
            self._lost = 0
        if self._lost or not self._append_line(number, line):
            self._lost += 1

    def _append_line(self, number: int, line: str, *, force: bool = False) -> bool:
        chunk = self._spool.append(self._chunk, self._key, number, line, force=force)
        if chunk is None:
            return False
        if chunk is not self._chunk:
            self._chunk = chunk
            self._chunks = [one for one in self._chunks if self._spool.is_pending(one)]
            self._chunks.append(chunk)
        return True

    def _notice(self, text: str) -> str:
        return notice_line(time_ns() // 1_000_000, text)

    # --- the end ---

    def end(self) -> None:
        """Add the last lines: those without a newline, and the tail of a log that is too long.

        Lines that come later, of threads that go on, are added as long as there is room; one
        without a newline when nothing follows it: `print` writes a line in parts.
        """
        with self._lock:
            self._end_lines()
            self._is_ended = True
            if self._lost:  # the last one of them has the number
                number = self._tail_first - 1 if self._tail_first else self.line_count
                self._append_line(number, self._notice(loss_text(self._lost, _LOSS)), force=True)
                self._lost = 0
            if tail := self._cap.take_tail():
                files, self._tail = self._tail, None
                self._chunks += self._spool.end_tail(self._key, tail, self._tail_first, files)

    def _end_lines(self) -> None:
        """Add the lines that no newline has ended."""
        with self._lock:
            for stream, buffer in self._buffers.items():
                for line in buffer.rest():
                    self._add(STREAM_LEVELS[stream], stream, "", line)

    def take(self) -> list[PendingChunk]:
        """Take the chunks that are not stored yet, in order."""
        with self._lock:
            chunks, self._chunks, self._chunk = self._chunks, [], None
        return self._spool.take_try(chunks, _WAIT_SECONDS)
