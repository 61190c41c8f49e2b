"""Limits of programs: lengths that a database can store, durations, recursive calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flowengine.program.expressions import Constants, EvaluationError, evaluate
from flowengine.program.nodes import Argument, FacetDeclaration, Mixin

#: Characters of a breaker's name. The task's row holds it with a short prefix.
LONGEST_CIRCUIT = 200
_LONGEST = {"its name": 255, "task_list": 255, "breaker": LONGEST_CIRCUIT}
LONGEST_SECONDS = 100 * 365 * 86_400.0  #: a century: databases count milliseconds not much longer
_TIMEOUT = "Timeout"  # the built-in mixin: ``with Timeout(minutes = 5)`` limits an event
_SECONDS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0, "ms": 0.001}
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


def timeout_of(mixins: Iterable[Mixin]) -> float | str | None:
    """Return the seconds of a timeout among these mixins, or the problem with it."""
    return next((_seconds(mixin.arguments) for mixin in mixins if is_timeout(mixin)), None)


def is_timeout(mixin: Mixin) -> bool:
    return mixin.target.rpartition(".")[2] == _TIMEOUT and not mixin.alias


def _seconds(arguments: Iterable[Argument]) -> float | str:
    total = 0.0
    for argument in arguments:
        if argument.name not in _SECONDS:
            known = ", ".join(_SECONDS)
            return f"{_TIMEOUT} has no parameter {argument.name!r}: it has {known}"
        try:
            value = evaluate(argument.value, Constants())
        except EvaluationError:
            value = None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            return f"{argument.name!r} of {_TIMEOUT} must be a constant number"
        total += value * _SECONDS[argument.name]
    if not total <= LONGEST_SECONDS:
        return f"{_TIMEOUT} is {total:g} seconds, and may be {LONGEST_SECONDS:g}"
    return total if total > 0 else f"{_TIMEOUT} must be greater than 0"
