"""The cap of a log: the first lines of a try are kept, and the last ones."""

from __future__ import annotations

from collections import deque

TAIL_BYTES = 1024 * 1024  #: of the last lines


class Cap:
    """Counts the lines of a try, and holds the last ones once the first bytes are full."""

    def __init__(self, head_bytes: int, tail_bytes: int = TAIL_BYTES) -> None:
        self._room, self.tail_bytes = head_bytes, tail_bytes
        self._tail: deque[tuple[int, str]] = deque()
        self._held = 0  #: bytes of the tail
        self.skipped_lines = 0

    def admits(self, number: int, line: str) -> bool:
        """Whether a line is among the first; if not it is held, and may be left out later."""
        if self._room >= len(line) and not self._tail:
            self._room -= len(line)
            return True
        self._tail.append((number, line))
        self._held += len(line)
        while self._held > self.tail_bytes and len(self._tail) > 1:
            _, left_out = self._tail.popleft()
            self._held -= len(left_out)
            self.skipped_lines += 1
        return False

    def leaves_out(self, more: int) -> bool:
        """Whether a line that `more` bytes follow is left out; then it is counted.

        The caller need not make such lines: one text may be much longer than all that is kept.
        """
        if more < self.tail_bytes or (self._room > 0 and not self._tail):
            return False
        self.skipped_lines += len(self._tail) + 1
        self._tail.clear()
        self._room = self._held = 0
        return True

    def take_tail(self) -> list[tuple[int, str]]:
        """Return the last lines with their numbers; from now on none is among the first."""
        tail, self._tail, self._held = list(self._tail), deque(), 0
        if tail:
            self._room = 0
        return tail


def gap_text(lines: int) -> str:
    """Return the line that stands for lines that were left out."""
    return f"… {lines:,} lines are left out: the log of this try is too long …"


def loss_text(lines: int, reason: str) -> str:
    """Return the line that stands for lines that are lost."""
    return f"… {lines:,} lines are lost: {reason} …"
