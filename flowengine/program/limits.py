"""Limits of programs: lengths that a database can store, durations, recursive calls."""

from __future__ import annotations

from collections.abc import Iterator

from flowengine.program.nodes import FacetDeclaration

#: Characters of a breaker's name. The task's row holds it with a short prefix.
LONGEST_CIRCUIT = 200
_LONGEST = {"its name": 255, "task_list": 255, "breaker": LONGEST_CIRCUIT}
LONGEST_SECONDS = 100 * 365 * 86_400.0  #: a century: databases count milliseconds not much longer
MAX_RECURSIVE_CALLS = 10_000  #: the default of the setting of that name


def beyond_limits(name: str, facet: FacetDeclaration) -> Iterator[str]:
    """Return every value of a facet that is too large to be stored, with its limit."""
    options = facet.options
    texts = {"its name": name, "task_list": options.task_list, "breaker": options.breaker}
    for what, text in texts.items():
        if len(text) > _LONGEST[what]:
            yield f"{what} has {len(text)} characters, and may have {_LONGEST[what]}"
        if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text):
            yield f"{what} has a character in it that no database stores: {text!r}"
    seconds = {"timeout": options.timeout or 0.0}
    seconds |= {f"retry.{n}": getattr(options.retry, n) for n in ("first_wait", "max_wait")}
    for what, value in seconds.items():
        if not value <= LONGEST_SECONDS:
            yield f"{what} is {value:g} seconds, and may be {LONGEST_SECONDS:g}"
