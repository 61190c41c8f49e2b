"""Formats of dates and times in schemas, for the inputs of a start.

JSON Schema takes `format` as a comment, and so do results: their code has its annotations. An input
that is no date would fail the first step that reads it, so a start refuses it. Every form is
accepted that a Python annotation of the type may read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any

_READERS: Mapping[str, tuple[str, tuple[Callable[[str], Any], ...]]] = {
    "date": ("date: write it as 2026-11-15", (date.fromisoformat, datetime.fromisoformat)),
    "date-time": (
        "date and time: write it as 2026-11-15T09:30:00Z",
        (datetime.fromisoformat, date.fromisoformat),
    ),
    "time": ("time: write it as 09:30:00", (time.fromisoformat,)),
}


def format_misfit(name: str, text: str) -> str:
    """Return why a text is not of a format; empty if it is, or if the format is not checked."""
    known = _READERS.get(name)
    if known is None or _is_number(text) or any(_is_read(text, read) for read in known[1]):
        return ""
    return f"{text[:100]!r} is no {known[0]}"


def _is_read(text: str, read: Callable[[str], Any]) -> bool:
    try:
        read(text.upper())
    except ValueError:
        return False
    return True


def _is_number(text: str) -> bool:
    """Whether a text may be seconds since the epoch."""
    try:
        float(text)
    except ValueError:
        return False
    return True
