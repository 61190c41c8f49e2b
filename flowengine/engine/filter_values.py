"""Values of filters, checked before a query: ages and numbers of rows."""

from __future__ import annotations

from datetime import timedelta

from flowengine.errors import InvalidFilter

_MAX_SECONDS = 1e11  #: about three thousand years


def age_of(name: str, value: object) -> int:
    """Return an age in milliseconds: a timedelta, or seconds; raises InvalidFilter."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        seconds = -1
    if 0 <= seconds <= _MAX_SECONDS:  # a NaN is not
        return round(seconds * 1000)
    raise InvalidFilter.of(name, value, "an age of 0 or more: a timedelta, or seconds")


def number_of_rows(name: str, value: object, least: int = 1) -> int:
    """Return a number of rows, or a place among them; raises InvalidFilter."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidFilter.of(name, value, f"a whole number of at least {least}")
    return value
