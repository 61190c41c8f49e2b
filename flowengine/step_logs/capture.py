"""Capture: what code prints and logs while a step is current goes to the log of its try as well.

Streams are wrapped, and `Logger.callHandlers` is replaced once: a handler would not see loggers
that do not propagate, as Celery's of tasks, and its mere presence at the root logger disables
`logging.basicConfig`, and the output of warnings where nothing is configured. Neither changes what
the streams and handlers of the application get.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable
from typing import Any, TextIO, cast

from flowengine.log_context import StepLog, logged_step
from flowengine.step_logs.lines import STDERR, STDOUT
from flowengine.step_logs.threads import follow_threads, step_of_lines

OWN = "flowengine"  #: the loggers of this package: their records are about a step, not of it
_formatter = logging.Formatter()


class _Passing(threading.local):
    """Whether this thread passes on what is captured: handlers write to streams, too."""

    is_on = False


_passing = _Passing()


def _current_log() -> StepLog | None:
    if _passing.is_on:
        return None
    step = step_of_lines()
    return None if step is None else step.log()


class CapturedStream:
    """A text stream that adds what the code of a step writes to the log of its try."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: str) -> int:
        passing = _passing
        if (
            passing.is_on
            or (step := logged_step.get(None) or step_of_lines()) is None
            or (log := step.log()) is None
        ):
            return self._stream.write(text)
        passing.is_on = True
        try:
            try:
                log.write(self._name, text)
            except Exception as problem:
                _note(problem)
            return self._stream.write(text)
        finally:
            passing.is_on = False

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _note(problem: Exception) -> None:
    """A step does not fail because of its log."""
    logging.getLogger("flowengine").debug("a line was not kept: %s", problem)


def add_lines(log: StepLog, stream: str, text: str) -> None:
    """Add text that did not go through a stream of this process."""
    outer, _passing.is_on = _passing.is_on, True  # a finalizer may print meanwhile
    try:
        log.write(stream, text)
    except Exception as problem:
        _note(problem)
    finally:
        _passing.is_on = outer


_call_handlers = logging.Logger.callHandlers


def _captured_call(logger: logging.Logger, record: logging.LogRecord) -> None:
    is_own = record.name.partition(".")[0] == OWN
    log = None if is_own else _current_log()
    if log is None and not is_own:
        _call_handlers(logger, record)
        return
    # Also for own records: a handler that writes them to a stream makes no lines of the step.
    outer, _passing.is_on = _passing.is_on, True
    try:
        if log is not None:
            try:
                log.record(record.levelno, record.name, _text(record))
            except Exception as problem:
                _note(problem)
        _call_handlers(logger, record)
    finally:
        _passing.is_on = outer


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the arguments do not fit the text: handlers tell that, and drop the record
        return f"{record.msg} {record.args!r}"


def _text(record: logging.LogRecord) -> str:
    parts = [_message(record)]
    if record.exc_text:
        parts.append(record.exc_text)
    elif record.exc_info and record.exc_info[0] is not None:
        parts.append(_formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


def capture() -> None:
    """Capture streams and loggers of this process; called before tries, as others replace them."""
    if type(sys.stdout) is not CapturedStream and sys.stdout is not None:
        sys.stdout = cast("TextIO", CapturedStream(sys.stdout, STDOUT))
    if type(sys.stderr) is not CapturedStream and sys.stderr is not None:
        sys.stderr = cast("TextIO", CapturedStream(sys.stderr, STDERR))
    global _is_installed
    if not _is_installed:
        _is_installed = True
        logging.Logger.callHandlers = _captured_call  # type: ignore[assignment, method-assign]
        follow_threads()


_is_installed = False
