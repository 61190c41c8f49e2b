"""The deadline of a step: a mixin at its call, ``with Deadline(minutes = 5)``.

It covers all tries of an event, and everything below a step that has a body. In the signature of a
workflow it is the deadline of its runs, unless a start gives another. A program may declare a facet
of that name; then the mixin is that facet.
"""

from __future__ import annotations

from flowengine.program.expressions import Constants, EvaluationError, evaluate
from flowengine.program.nodes import Argument, Literal, Mixin
from flowengine.program.option_checks import LONGEST_SECONDS, is_number

MIXIN = "Deadline"
_SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400}


def deadline_mixin(seconds: float) -> Mixin:
    return Mixin(MIXIN, (Argument("seconds", Literal(seconds)),))


def is_deadline(mixin: Mixin) -> bool:
    return mixin.target == MIXIN and not mixin.alias


def deadline_of(mixin: Mixin) -> float | str:
    """Return the seconds of a deadline, or the problem with it."""
    total = 0.0
    for argument in mixin.arguments:
        if argument.name not in _SECONDS:
            known = ", ".join(_SECONDS)
            return f"{MIXIN} has no parameter {argument.name!r}: it has {known}"
        try:
            value = evaluate(argument.value, Constants())
        except EvaluationError:
            value = None
        if not is_number(value):
            return f"{argument.name!r} of {MIXIN} must be a constant number"
        total += value * _SECONDS[argument.name]
    if not total <= LONGEST_SECONDS:
        return f"{MIXIN} is {total:g} seconds, and may be {LONGEST_SECONDS:g}"
    return total if total > 0 else f"{MIXIN} must be greater than 0"
