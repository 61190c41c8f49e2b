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
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

from flowengine.log_context import StepLog, logged_step
from flowengine.step_logs.lines import STDERR, STDOUT

OWN = "flowengine"  #: the loggers of this package: their records are about a step, not of it
_formatter = logging.Formatter()


class _Passing(threading.local):
    """Whether this thread passes on what is captured: handlers write to streams, too."""

    is_on = False


_passing = _Passing()


def _current_log() -> StepLog | None:
    if _passing.is_on:
        return None
    step = logged_step.get(None)
    return None if step is None else step.log()


class CapturedStream:
    """A text stream that adds what the code of a step writes to the log of its try."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: str) -> int:
        log = _current_log()
        if log is None:
            return self._stream.write(text)
        return _passed_on(lambda: log.write(self._name, text), lambda: self._stream.write(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _passed_on(keep: Callable[[], None], pass_on: Callable[[], int]) -> int:
    _passing.is_on = True
    try:
        try:
            keep()
        except Exception as problem:  # it must not fail the step
            logging.getLogger("flowengine").debug("a line was not kept: %s", problem)
        return pass_on()
    finally:
        _passing.is_on = False


_call_handlers = logging.Logger.callHandlers


def _captured_call(logger: logging.Logger, record: logging.LogRecord) -> None:
    log = None if record.name.partition(".")[0] == OWN else _current_log()
    if log is None:
        _call_handlers(logger, record)
        return

    def pass_on() -> int:
        _call_handlers(logger, record)
        return 0

    _passed_on(lambda: log.record(record.levelno, record.name, _text(record)), pass_on)


def _text(record: logging.LogRecord) -> str:
    parts = [record.getMessage()]
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


_is_installed = False
