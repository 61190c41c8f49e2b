"""``with Timeout(minutes = 5)``: a built-in mixin that limits an event."""

from __future__ import annotations

from collections.abc import Iterable

from flowengine.program.expressions import Constants, EvaluationError, evaluate
from flowengine.program.limits import LONGEST_SECONDS
from flowengine.program.nodes import Argument, Mixin

_NAME = "Timeout"
_SECONDS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0, "ms": 0.001}


def timeout_of(mixins: Iterable[Mixin]) -> float | str | None:
    """Return the seconds of a timeout among these mixins, or the problem with it."""
    for mixin in mixins:
        if mixin.target.rpartition(".")[2] == _NAME and not mixin.alias:
            return _seconds(mixin.arguments)
    return None


def _seconds(arguments: Iterable[Argument]) -> float | str:
    total = 0.0
    for argument in arguments:
        if argument.name not in _SECONDS:
            known = ", ".join(_SECONDS)
            return f"{_NAME} has no parameter {argument.name!r}: it has {known}"
        try:
            value = evaluate(argument.value, Constants())
        except EvaluationError:
            value = None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            return f"{argument.name!r} of {_NAME} must be a number that the program says"
        total += value * _SECONDS[argument.name]
    if not total <= LONGEST_SECONDS:
        return f"{_NAME} is {total:g} seconds, and may be {LONGEST_SECONDS:g}"
    return total if total > 0 else f"{_NAME} must be longer than nothing"
