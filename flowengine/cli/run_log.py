"""The lines of a run that `flowengine top` shows: what its steps print, and what becomes of them.

Both are in the order of time, as far as they are read at the same moment: lines are stored up to
half a second after they were printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from rich.text import Text

from flowengine.cli.history_command import entry_lines
from flowengine.cli.logs_command import log_line
from flowengine.cli.terminal import line
from flowengine.engine import Engine, RunInfo
from flowengine.engine.presentation import clock
from flowengine.engine.run_logs import RunLog as PrintedLines
from flowengine.errors import UnknownRun

_COMMITS = 200  #: commits of the history that are read at once
_LINES = 500  #: printed lines with which the log of a long run begins
_MAX_LINE = 500

Timed = tuple[int, Text]


class RunLog:
    """The log of one run, from its last lines on. Used by one thread at a time."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self._engine, self.run_id = engine, run_id
        self._revision: int | None = None  #: of the last commit whose lines were returned
        self._printed: PrintedLines | None = None
        self._last = 0  #: the time of the last printed line

    def new_lines(self) -> list[Text]:
        """Return the lines since the last call; at the first call, the last lines there are."""
        try:
            run = self._engine.get(self.run_id)
            # In this order, which stays at the same time: a step prints before it ends.
            found = [*self._lines(run), *self._commits(run)]
        except UnknownRun:
            return []  # purged while it was looked at
        return [text for _, text in sorted(found, key=itemgetter(0))]

    def _commits(self, run: RunInfo) -> Iterator[Timed]:
        if self._revision is None:
            self._revision = max(0, run.revision - _COMMITS)
        if self._revision == run.revision:
            return
        for entry in self._engine.history(self.run_id, after=self._revision, limit=_COMMITS):
            at = _time(entry.at)
            for text in entry_lines(entry):
                yield entry.at, line((at, "dim"), text, limit=_MAX_LINE)
            self._revision = entry.revision
            if entry.revision == run.revision and run.error_text:
                yield entry.at, line((at, "dim"), (run.error_text, "red"))

    def _lines(self, run: RunInfo) -> Iterator[Timed]:
        if self._printed is None:
            # After an outage: behind the lines that were shown.
            last = None if self._last else _LINES
            since = self._last + 1
            self._printed = self._engine.logs(self.run_id, follow=True, last=last, since=since)
        try:
            entries, _ = self._printed.page()
        except BaseException:
            self._printed = None
            raise
        name = run.workflow.rpartition(".")[2]
        for entry in entries:
            self._last = max(self._last, entry.at)
            yield entry.at, log_line(entry, clock(entry.at)(entry.at), name)


def _time(milliseconds: int) -> str:
    return f"{clock(milliseconds)(milliseconds)}.{milliseconds % 1000:03} "
