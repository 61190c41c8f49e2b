"""How long a step may sleep, or wait for an answer: the constants of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowengine.program.expressions import Constants, EvaluationError, evaluate
from flowengine.program.nodes import Expression, Json
from flowengine.program.option_checks import LONGEST_SECONDS
from flowengine.program.standard import SLEEP, WAIT_FOR

_LONGEST = f"{LONGEST_SECONDS:,.0f} (a hundred years)"


def sleep_problem(seconds: Json) -> str:
    if _is_number(seconds) and 0 <= seconds <= LONGEST_SECONDS:
        return ""
    return f"a sleep is a number of seconds from 0 to {_LONGEST}, not {_shown(seconds)}"


def timeout_problem(seconds: Json) -> str:
    if _is_number(seconds) and 0 < seconds <= LONGEST_SECONDS:
        return ""
    bounds = f"a number of seconds above 0, and at most {_LONGEST}"
    return f"the timeout of wait_for is {bounds}, not {_shown(seconds)}"


def time_problems(facet: str, given: Mapping[str, Expression]) -> Iterator[str]:
    """Return the problem of a constant time among the arguments of a call."""
    if facet == SLEEP and _is_number(seconds := _constant(given.get("seconds"))):
        problem = sleep_problem(seconds)  # another type is reported with the types of arguments
    elif facet == WAIT_FOR and (timeout := _constant(given.get("timeout"))) is not None:
        problem = timeout_problem(timeout)
    else:
        return
    if problem:
        yield problem


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Json) -> str:
    return repr(value)[:100]


def _constant(node: Expression | None) -> Json:
    try:
        return None if node is None else evaluate(node, Constants())
    except EvaluationError:
        return None  # a run computes it
