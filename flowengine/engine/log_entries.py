"""Lines of logs as readers get them, and which of them a reader wants."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from flowengine.engine.filter_values import age_of, number_of_rows
from flowengine.errors import InvalidFilter
from flowengine.step_logs.lines import LogLine, lines_of
from flowengine.store import Session
from flowengine.store.logs import FoundChunk, LoggedTask


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line that the code of a step has printed or logged."""

    run_id: str
    path: str  #: of the step
    facet: str
    try_number: int  #: of the step, with those that were lost
    task_id: str
    lease: int  #: of the task: with it the try is named
    number: int  #: of the line, within the try, from 1
    at: int  #: milliseconds since the epoch, by the clock of its process
    level: str  #: INFO of the standard output, WARNING of the standard error
    stream: str  #: stdout, stderr or log
    logger: str  #: of a line of `logging`
    text: str


@dataclass(frozen=True, slots=True)
class LineFilter:
    """The lines that a reader wants."""

    steps: tuple[str, ...] = ()
    try_number: int | None = None
    level: int = 0
    grep: re.Pattern[str] | None = None
    since: int = 0

    def wants(self, task: LoggedTask) -> bool:
        if self.try_number is not None and task.try_number != self.try_number:
            return False
        return not self.steps or any(is_step(task.path, step) for step in self.steps)

    def admits(self, line: LogLine) -> bool:
        is_wanted = line.level >= self.level and line.at >= self.since
        return is_wanted and (self.grep is None or self.grep.search(line.text) is not None)


def is_step(path: str, step: str) -> bool:
    """Whether a filter means the step of a path: with the path, or with its end."""
    return path == step or path.endswith(f".{step}")


def line_filter(
    now: int,
    *,
    step: str | Sequence[str] | None = None,
    try_number: int | None = None,
    level: str | int | None = None,
    grep: str | None = None,
    since: datetime | timedelta | int | None = None,
) -> LineFilter:
    """Check the filters of a reader; raises InvalidFilter."""
    steps = (step,) if isinstance(step, str) else tuple(step or ())
    if try_number is not None:
        number_of_rows("try_number", try_number)
    try:
        pattern = None if grep is None else re.compile(grep)
    except re.error as problem:
        raise InvalidFilter.of("grep", grep, f"a regular expression: {problem}") from None
    return LineFilter(steps, try_number, _level(level), pattern, _since(since, now))


def _level(level: str | int | None) -> int:
    if level is None or (isinstance(level, int) and not isinstance(level, bool)):
        return level or 0
    found = logging.getLevelNamesMapping().get(str(level).upper())
    if found is None:
        raise InvalidFilter.of("level", level, "one of DEBUG, INFO, WARNING, ERROR, CRITICAL")
    return found


def _since(since: datetime | timedelta | int | None, now: int) -> int:
    if isinstance(since, datetime):
        try:
            return round(since.timestamp() * 1000)
        except (ValueError, OverflowError, OSError):  # its time zone moves it out of all years
            raise InvalidFilter.of(
                "since", str(since), "a time within the years 2 to 9998"
            ) from None
    if isinstance(since, timedelta):
        return now - age_of("since", since)
    if since is None or (isinstance(since, int) and not isinstance(since, bool)):
        return since or 0
    raise InvalidFilter.of("since", since, "a datetime, a timedelta, or milliseconds")


def entry_of(run_id: str, task: LoggedTask, lease: int, line: LogLine) -> LogEntry:
    return LogEntry(
        *(run_id, task.path, task.facet, task.try_number, task.id, lease),
        *(line.number, line.at, logging.getLevelName(line.level)),
        *(line.stream, line.logger, line.text),
    )


def entries_of(
    run_id: str, task: LoggedTask, chunk: FoundChunk, wanted: LineFilter
) -> list[LogEntry]:
    """Return the wanted lines of a chunk."""
    lines = lines_of(chunk.body, chunk.first)
    return [entry_of(run_id, task, chunk.lease, line) for line in lines if wanted.admits(line)]


def newest_entries(session: Session, run_id: str, most: int, chunks: int) -> list[LogEntry]:
    """Return the last lines of the chunks that were stored last: the same cost for every log."""
    found = session.logs.newest(run_id, chunks)
    tasks = {task.id: task for task in session.logs.tasks({chunk.task_id for chunk in found})}
    entries = [
        entry
        for chunk in sorted(found)
        if chunk.task_id in tasks
        for entry in entries_of(run_id, tasks[chunk.task_id], chunk, LineFilter())
    ]
    return sorted(entries, key=lambda entry: entry.at)[-most:] if most else []
