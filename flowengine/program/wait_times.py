"""How long a step may sleep, and which answer it may wait for: the constants of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from flowengine.program.expressions import Constants, EvaluationError, evaluate
from flowengine.program.nodes import Expression, Json
from flowengine.program.option_checks import LONGEST_SECONDS
from flowengine.program.standard import SLEEP, SLEEP_UNTIL, WAIT_FOR

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


def until_problem(until: Json) -> str:
    try:
        datetime.fromisoformat(until)
    except (TypeError, ValueError):
        return f"{_shown(until)} is no time: write 2031-05-01T09:00:00Z"
    return ""


def answer_problem(name: Json) -> str:
    is_name = isinstance(name, str) and name.strip()
    return "" if is_name else f"the name of an answer is a text, not {_shown(name)}"


def time_problems(facet: str, given: Mapping[str, Expression]) -> Iterator[str]:
    """Return the problem of a constant time among the arguments of a call."""
    if facet == SLEEP and _is_number(seconds := _constant(given.get("seconds"))):
        problem = sleep_problem(seconds)  # another type is reported with the types of arguments
    elif facet == WAIT_FOR and (timeout := _constant(given.get("timeout"))) is not None:
        problem = timeout_problem(timeout)
    elif facet == SLEEP_UNTIL and isinstance(until := _constant(given.get("until")), str):
        problem = until_problem(until)
    else:
        problem = ""
    if problem:
        yield problem
    if facet == WAIT_FOR and isinstance(name := _constant(given.get("name")), str):
        yield from filter(None, [answer_problem(name)])


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Json) -> str:
    return repr(value)[:100]


def _constant(node: Expression | None) -> Json:
    try:
        return None if node is None else evaluate(node, Constants())
    except EvaluationError:
        return None  # a run computes it
