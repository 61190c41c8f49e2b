"""The place of a reader in the log of one try, and the lines for which a chunk accounts.

The chunks of a try may be seen in any order: a report commits after a delivery that began later,
and two processes store the files of a dead one. So a place moves only over lines that were passed
on, or that a line of the log says are left out. Lines that a reader did not wait for are holes.
"""

from __future__ import annotations

import re

from flowengine.step_logs.lines import LOG, LogLine

OWN_LOGGER = "flowengine"  #: of lines in which flowengine tells something about a log
_MAX_HOLES = 100  #: of one try
_TOLD = re.compile(r"… ([\d,]+) lines are ")


class TryPlace:
    """All lines before `line` were passed on, but those in the holes."""

    __slots__ = ("holes", "line")

    def __init__(self, line: int = 1) -> None:
        self.line = line
        self.holes: list[range] = []  #: of numbers, in order

    def missing(self, first: int, count: int) -> list[range]:
        """Return the lines of a chunk that were not passed on."""
        end = first + count
        parts = [range(max(hole.start, first), min(hole.stop, end)) for hole in self.holes]
        return [part for part in (*parts, range(max(self.line, first), end)) if part]

    def pass_over(self, first: int, count: int, start: int) -> None:
        """Note that a chunk was passed on, which accounts for the lines from `start` on."""
        end, holes = first + count, list[range]()
        for hole in self.holes:
            rest = range(hole.start, min(hole.stop, start)), range(max(hole.start, end), hole.stop)
            holes += [part for part in rest if part]
        if start > self.line:
            holes.append(range(self.line, start))
        self.holes = holes[-_MAX_HOLES:]
        self.line = max(self.line, end)


def accounted_from(lines: list[LogLine]) -> int:
    """Return the first line for which a chunk accounts: its own, or one that it says is left out.

    A told line has the number of the last line that it stands for. Several of them follow each
    other, so their sum counts back from the last one.
    """
    told = 0
    for line in lines:
        found = _TOLD.match(line.text) if (line.stream, line.logger) == (LOG, OWN_LOGGER) else None
        if found is None:
            break
        told += int(found[1].replace(",", ""))
    else:
        line = lines[-1]._replace(number=lines[-1].number + 1)
    return min(lines[0].number, line.number - told)


def untold_text(missing: range) -> str:
    """Return the line that stands for lines that are not stored, without a reason in the log."""
    return (
        f"… lines {missing.start:,} to {missing.stop - 1:,} of this try are not stored: "
        "they are on their way, or were removed …"
    )
