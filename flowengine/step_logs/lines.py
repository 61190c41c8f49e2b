"""One line of a log: its form in a chunk, and how text becomes lines."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

STDOUT, STDERR, LOG = "stdout", "stderr", "log"
#: Streams have no levels of their own.
STREAM_LEVELS = {STDOUT: logging.INFO, STDERR: logging.WARNING}
#: Bytes of one line as it is stored. A longer one is cut into several, and nothing of it is lost.
LINE_BYTES = 32 * 1024
_QUOTED = 2  #: bytes of a printable ASCII character
_WORST = 12  #: bytes of any other: two escape sequences
SHORT = LINE_BYTES // _WORST  #: characters of a line that is surely one piece
_MOST_LOGGER = 200  #: characters of the name of a logger

# ASCII, because databases refuse a NUL or half a surrogate pair. Five times as fast as an encoder
# of the whole line, which is the most part of its cost.
_quoted = json.encoder.encode_basestring_ascii


class LogLine(NamedTuple):
    """A line of the log of a try."""

    number: int  #: within the try, from 1
    at: int  #: milliseconds since the epoch, by the clock of the process that wrote it
    level: int  #: of `logging`
    stream: str  #: stdout, stderr or log
    logger: str  #: of a line of `logging`
    text: str


def encoded_line(at: int, level: int, stream: str, logger: str, text: str) -> str:
    """Return a line as chunks have it, without its number: that follows from its place."""
    name = _quoted(logger[:_MOST_LOGGER]) if logger else '""'
    return f'[{at},{level},"{stream}",{name},{_quoted(text)}]'


def notice_line(at: int, text: str) -> str:
    """Return a line that flowengine itself adds to a log: a notice of a gap or a loss."""
    return encoded_line(at, logging.WARNING, LOG, "flowengine", text)


def body_of(lines: Sequence[str]) -> str:
    """Return the body of a chunk of encoded lines."""
    return f"[{','.join(lines)}]"


def lines_of(body: str, first: int) -> list[LogLine]:
    """Return the lines of a chunk, whose first line has that number."""
    found: list[Any] = json.loads(body)
    return [LogLine(number, *line) for number, line in enumerate(found, first)]


def pieces(text: str) -> Iterator[str]:
    """Return a line in pieces that fit LINE_BYTES each; most lines are one piece."""
    if len(text) <= SHORT:
        yield text
        return
    place = 0
    while place < len(text):
        piece = text[place : place + LINE_BYTES // _QUOTED]
        if not (piece.isascii() and piece.isprintable()):
            piece = piece[: LINE_BYTES // _WORST]
        yield piece
        place += len(piece)


class LineBuffer:
    """Joins what is written to a stream to whole lines."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: list[str] = []  #: of the line that is not ended
        self.size = 0

    def add(self, text: str) -> None:
        """Add text without an end of a line."""
        self._parts.append(text)
        self.size += len(text)

    def lines(self, text: str) -> list[str]:
        """Add text; return the lines that it has ended."""
        if self._parts:
            text = "".join(self._parts) + text
        lines = text.split("\n")
        self._keep(lines.pop())
        return [line.removesuffix("\r") for line in lines] if "\r" in text else lines

    def _keep(self, rest: str) -> None:
        self._parts = [rest] if rest else []
        self.size = len(rest)

    def overflow(self, redacted: Callable[[str], str], overlap: int) -> list[str]:
        """Return the beginning of a line that becomes too long, redacted; most have none.

        The last characters stay: they may be the beginning of a secret, whose end is to come.
        """
        if self.size <= LINE_BYTES + overlap:
            return []
        rest = redacted("".join(self._parts))
        self._keep(rest[len(rest) - overlap :])
        return [rest[: len(rest) - overlap]]

    def rest(self) -> list[str]:
        """Return the line that was not ended, if there is one."""
        rest = "".join(self._parts)
        self._keep("")
        return [rest] if rest else []
