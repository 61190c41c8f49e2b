"""Check and trace the lambdas of `foreach`, `when` and `attempt`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flowengine.authoring.lint import lint
from flowengine.authoring.locations import location_of, user_location
from flowengine.authoring.scopes import Scope
from flowengine.authoring.shapes import value_hint
from flowengine.authoring.symbols import Symbol, info_of
from flowengine.errors import AuthoringError
from flowengine.program.nodes import StepStatement, YieldStatement

_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_body(value: Any) -> bool:
    """Whether the value is a callable, not a symbol or a plain value."""
    return callable(value) and not isinstance(value, Symbol)


def one_parameter(body: Any, what: str, usage: str) -> str:
    """Return the name of a body's only parameter; raises AuthoringError if it has not one."""
    parameters = _parameters(body, what, usage)
    # `lambda x, n=n: …` binds a loop variable in Python: defaults do not count.
    needed = [p for p in parameters if p.default is p.empty] or parameters
    by_keyword = (*_STARS, inspect.Parameter.KEYWORD_ONLY)
    if len(needed) != 1 or needed[0] is not parameters[0] or needed[0].kind in by_keyword:
        raise AuthoringError(f"{user_location()}: {what} takes one parameter: {usage}")
    _lint_function(body)
    return needed[0].name


def no_parameters(body: Any, what: str, usage: str) -> None:
    """Raise AuthoringError for a body that needs an argument."""
    needed = [
        p for p in _parameters(body, what, usage) if p.default is p.empty and p.kind not in _STARS
    ]
    if needed:
        raise AuthoringError(
            f"{user_location()}: {what} takes no parameter, but this one has "
            f"{', '.join(repr(p.name) for p in needed)}: {usage}"
        )
    _lint_function(body)


@dataclass(frozen=True, slots=True)
class TracedBody:
    """The statements and the result of a traced lambda."""

    statements: tuple[StepStatement, ...]
    yields: tuple[YieldStatement, ...]  #: passes its value to the enclosing step
    hint: Any  #: the annotation of that value


def trace_body(inner: Scope, target: str, body: Any, *arguments: Any) -> TracedBody:
    """Trace a lambda in its own scope; a plain value counts as a lambda that returns it."""
    location = location_of(body) if is_body(body) else user_location()
    with inner.active():
        value = body(*arguments) if is_body(body) else body
        result = inner.to_expression(value)
    hint = info_of(value).hint if isinstance(value, Symbol) else value_hint(value)
    return TracedBody(tuple(inner.statements), inner.result_yield(target, result, location), hint)


def _parameters(body: Any, what: str, usage: str) -> list[inspect.Parameter]:
    if not is_body(body):
        this = "the result of a step" if isinstance(body, Symbol) else repr(body)
        raise AuthoringError(f"{user_location()}: {what} must be callable, this is {this}: {usage}")
    try:
        return list(inspect.signature(body).parameters.values())
    except (TypeError, ValueError):
        return []


def _lint_function(body: Callable[..., Any]) -> None:
    # An inline lambda is linted with its enclosing function.
    if inspect.isfunction(body) and body.__name__ != "<lambda>":
        lint(body)
