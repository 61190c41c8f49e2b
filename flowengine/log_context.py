"""Log records of a step carry its run, path and try.

The step is a context variable: a worker sets it around a try, and the tasks of an event loop and
the threads of `asyncio.to_thread` inherit it. `StepFilter` copies it into records of any logger;
the formatters show it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from flowengine.printable import printable

#: The attributes that the filter adds. A record that already has one, as the engine's, keeps it.
ATTRIBUTES = ("run", "path", "facet", "try_number")
_LIMIT = 200  #: characters of a path in a line
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "step", "taskName"}


class StepLog(Protocol):
    """The log of one try, which keeps what its code prints and logs."""

    def write(self, stream: str, text: str) -> None:
        """Add what was written to a stream; lines may come in parts."""

    def record(self, level: int, logger: str, text: str) -> None:
        """Add the lines of a log record."""

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """Mask these texts in the lines that follow."""


class LoggedStep(Protocol):
    """One try of a step."""

    def log(self) -> StepLog | None:
        """Return the log of this try; None: its lines are not kept."""

    @property
    def run_id(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def facet(self) -> str: ...
    @property
    def try_number(self) -> int: ...


logged_step: ContextVar[LoggedStep] = ContextVar("flowengine_step")


class StepFilter(logging.Filter):
    """Adds `run`, `path`, `facet`, `try_number` and `step` to records, and drops none.

    `step` is all of it as text, to stand behind a message; outside a step it is empty, and the
    other attributes are None. A filter of a handler is called in the thread of the record; so a
    handler that passes records to another thread needs it too.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        add_step(record)
        return True


def add_step(record: logging.LogRecord) -> None:
    """Add the attributes of the current step to a record that has none."""
    if hasattr(record, "step"):
        return
    step = logged_step.get(None)
    found: tuple[object, ...] = (None,) * len(ATTRIBUTES)
    if step is not None:
        found = step.run_id, step.path, step.facet, step.try_number
    for name, value in zip(ATTRIBUTES, found, strict=True):
        if not hasattr(record, name):
            setattr(record, name, value)
    record.step = _text(step) if step is not None else ""


def _text(step: LoggedStep) -> str:
    path = printable(step.path, limit=_LIMIT)
    return f" [run {step.run_id[:8]} {path} try {step.try_number}]"


class TextFormatter(logging.Formatter):
    """One line for each record, with its step at the end: ``… [run 3f2a90c1 order.pay try 2]``."""

    FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s%(step)s"

    def __init__(
        self,
        fmt: str | None = None,
        datefmt: str | None = None,
        style: Literal["%", "{", "$"] = "%",
        **options: Any,
    ) -> None:
        super().__init__(fmt or self.FORMAT, datefmt, style, **options)

    def format(self, record: logging.LogRecord) -> str:
        add_step(record)
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """One JSON object for each record, on one line, with everything given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        add_step(record)
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and value is not None:
                fields["try" if name == "try_number" else name] = value
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            fields["exception"] = record.exc_text
        if record.stack_info:
            fields["stack"] = record.stack_info
        try:
            return json.dumps(fields, default=str, ensure_ascii=False)
        except (TypeError, ValueError):  # a key that is no text, or a cycle, in an `extra`
            return json.dumps({name: str(value) for name, value in fields.items()})
