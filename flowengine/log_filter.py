"""The filter of flowengine's loggers: a record is one line, of bounded length.

Records contain text of runs: errors, names, paths. A newline in it would forge the next line of
the log, an escape sequence would reach the terminal of its reader. The filter belongs to the
loggers, not to a handler, so it applies wherever the application sends its records.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flowengine.printable import printable

#: An `extra` with the text of a traceback: of an exception that another process has raised.
REMOTE_TRACEBACK = "remote_traceback"
_MAX_TRACEBACK = 100_000  #: characters; the middle is cut
_formatter = logging.Formatter()


class _PrintableArgument:
    """An argument of a record; formatted only if a handler formats the record."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(str(self._value), limit=_filter.limit)

    def __repr__(self) -> str:
        return printable(repr(self._value), limit=_filter.limit)


class PrintableRecords(logging.Filter):
    """Changes records, and drops none."""

    #: Characters of one argument, and of one line of a traceback: the setting `max_log_length`.
    limit = 2_000

    def filter(self, record: logging.LogRecord) -> bool:
        args: Any = record.args
        if isinstance(args, Mapping):
            record.args = {name: _printable(value) for name, value in args.items()}
        elif args:
            record.args = tuple(map(_printable, args))
        elif isinstance(record.msg, str):
            record.msg = printable(record.msg, limit=self.limit)
        # Formatters use this text if it is set. Indented: a line of a message is no record.
        if REMOTE_TRACEBACK in vars(record):
            remote = vars(record).pop(REMOTE_TRACEBACK)
            record.exc_text = _indented(remote) if remote else None
        elif record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = _indented(_formatter.formatException(record.exc_info))
        return True


_filter = PrintableRecords()


def limit_records(length: int) -> None:
    """Set the number of characters after which a value in a record is cut, in this process."""
    _filter.limit = length


def safe_logger(name: str) -> logging.Logger:
    """Return the logger of that name, with the filter. Loggers do not inherit filters."""
    logger = logging.getLogger(name)
    logger.addFilter(_filter)
    return logger


def _printable(value: object) -> object:
    is_number = isinstance(value, int | float)
    return value if is_number else _PrintableArgument(value)


def _indented(text: str) -> str:
    text = printable(text, lines=True, limit=_filter.limit)
    if len(text) > _MAX_TRACEBACK:
        half = _MAX_TRACEBACK // 2
        text = (
            f"{text[:half]}\n… {len(text) - 2 * half:,} characters are left out …\n{text[-half:]}"
        )
    return "  " + text.replace("\n", "\n  ")
