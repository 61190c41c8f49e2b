"""The lines of a run that `flowengine top` shows while it goes on.

They are those of its history, one commit after the other. This module is the one place that decides
what the log of a run is made of.
"""

from __future__ import annotations

from rich.text import Text

from flowengine.cli.history_command import entry_lines
from flowengine.cli.terminal import line
from flowengine.engine import Engine
from flowengine.engine.presentation import clock
from flowengine.errors import UnknownRun

_PORTION = 200  #: commits that are read at once: a long run is shown from its last ones
_MAX_LINE = 500


class RunLog:
    """The log of one run, from its last lines on. Used by one thread at a time."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self._engine, self.run_id = engine, run_id
        self._revision: int | None = None  #: of the last commit whose lines were returned

    def new_lines(self) -> list[Text]:
        """Return the lines since the last call; at the first call, the last lines there are."""
        try:
            run = self._engine.get(self.run_id)
            if self._revision is None:
                self._revision = max(0, run.revision - _PORTION)
            elif self._revision == run.revision:
                return []
            entries = self._engine.history(self.run_id, after=self._revision, limit=_PORTION)
        except UnknownRun:
            return []  # purged while it was looked at
        found: list[Text] = []
        for entry in entries:
            written = clock(entry.at)(entry.at)
            found += [
                line((f"{written}  ", "dim"), text, limit=_MAX_LINE) for text in entry_lines(entry)
            ]
            self._revision = entry.revision
            if entry.revision == run.revision and run.error_text:
                found.append(line((f"{written}  ", "dim"), (run.error_text, "red")))
        return found
