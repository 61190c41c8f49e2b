"""The lambdas that `foreach`, `when` and `attempt` are given: looked at, then traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flowengine.authoring.lint import lint
from flowengine.authoring.locations import location_of, user_location
from flowengine.authoring.scopes import Scope
from flowengine.authoring.shapes import value_hint
from flowengine.authoring.symbols import Symbol, facts_of
from flowengine.errors import AuthoringError
from flowengine.program.nodes import StepStatement, YieldStatement

_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_body(value: Any) -> bool:
    """Whether this is something to call, and not a value of the run or of Python."""
    return callable(value) and not isinstance(value, Symbol)


def with_one_parameter(body: Any, what: str, usage: str) -> str:
    """The name of a body's one parameter; raises AuthoringError for any other body."""
    parameters = _parameters(body, what, usage)
    # `lambda x, n=n: …` is how Python fixes a loop variable: defaults do not count.
    needed = [p for p in parameters if p.default is p.empty] or parameters
    by_keyword = (*_STARS, inspect.Parameter.KEYWORD_ONLY)
    if len(needed) != 1 or needed[0] is not parameters[0] or needed[0].kind in by_keyword:
        raise AuthoringError(f"{user_location()}: {what} takes one parameter: {usage}")
    _read(body)
    return needed[0].name


def without_parameters(body: Any, what: str, usage: str) -> None:
    """Raise AuthoringError for a body that cannot be called with nothing."""
    needed = [
        p for p in _parameters(body, what, usage) if p.default is p.empty and p.kind not in _STARS
    ]
    if needed:
        raise AuthoringError(
            f"{user_location()}: {what} takes no parameter, this one wants "
            f"{', '.join(repr(p.name) for p in needed)}: {usage}"
        )
    _read(body)


@dataclass(frozen=True, slots=True)
class Traced:
    """What a lambda has become."""

    statements: tuple[StepStatement, ...]
    yields: tuple[YieldStatement, ...]  #: the one that gives its value to the step around it
    hint: Any  #: what is known of that value


def traced(inner: Scope, target: str, body: Any, *arguments: Any) -> Traced:
    """Call a lambda in a scope of its own; a plain value is a lambda that returns it."""
    there = location_of(body) if is_body(body) else user_location()
    with inner.entered():
        value = body(*arguments) if is_body(body) else body
        result = inner.admitted(value)
    hint = facts_of(value).hint if isinstance(value, Symbol) else value_hint(value)
    return Traced(tuple(inner.statements), inner.yielded(target, result, there), hint)


def _parameters(body: Any, what: str, usage: str) -> list[inspect.Parameter]:
    if not is_body(body):
        raise AuthoringError(
            f"{user_location()}: {what} is something to call, this is {_shown(body)}: {usage}"
        )
    try:
        return list(inspect.signature(body).parameters.values())
    except (TypeError, ValueError):
        return []


def _shown(value: Any) -> str:
    return "the result of a step" if isinstance(value, Symbol) else repr(value)


def _read(body: Callable[..., Any]) -> None:
    # An inline lambda was read with the function it stands in.
    if inspect.isfunction(body) and body.__name__ != "<lambda>":
        lint(body)
