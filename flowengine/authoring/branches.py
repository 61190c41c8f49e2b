"""Take one of several ways, in a run or in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from flowengine.authoring.bodies import is_body, traced, without_parameters
from flowengine.authoring.locations import user_location
from flowengine.authoring.scopes import Scope, checked_step_name, current_scope
from flowengine.authoring.shapes import joined_hint
from flowengine.authoring.symbols import Nowhere, Symbol
from flowengine.errors import AuthoringError
from flowengine.program.nodes import (
    Block,
    Call,
    Expression,
    Literal,
    Location,
    StepRef,
    StepStatement,
    WhenCase,
)
from flowengine.program.standard import RESULT, STANDARD, WHEN

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")

_ABSENT: Any = object()
_USAGE = (
    "when(condition, lambda: …, otherwise=lambda: …) or "
    "when((condition, lambda: …), (condition, lambda: …), otherwise=lambda: …)"
)


@overload
def when(
    condition: bool, /, then: Callable[[], T], *, otherwise: Callable[[], U], name: str | None = ...
) -> T | U: ...
@overload
def when(
    condition: bool, /, then: Callable[[], T], *, otherwise: U, name: str | None = ...
) -> T | U: ...
@overload
def when(
    condition: bool, /, then: T, *, otherwise: Callable[[], U], name: str | None = ...
) -> T | U: ...
@overload
def when(condition: bool, /, then: T, *, otherwise: U, name: str | None = ...) -> T | U: ...
@overload
def when(condition: bool, /, then: Callable[[], object], *, name: str | None = ...) -> None: ...
@overload
def when(
    first: tuple[bool, Callable[[], T]],
    second: tuple[bool, Callable[[], V]],
    /,
    *,
    otherwise: Callable[[], U],
    name: str | None = ...,
) -> T | V | U: ...
@overload
def when(
    *cases: tuple[bool, Callable[[], T]], otherwise: Callable[[], U], name: str | None = ...
) -> T | U: ...
@overload
def when(*cases: tuple[bool, Callable[[], T]], otherwise: U, name: str | None = ...) -> T | U: ...
@overload
def when(
    *cases: tuple[bool, Callable[[], T] | T], otherwise: Callable[[], U], name: str | None = ...
) -> T | U: ...
@overload
def when(
    *cases: tuple[bool, Callable[[], T] | T], otherwise: U, name: str | None = ...
) -> T | U: ...
@overload
def when(*cases: tuple[bool, Callable[[], object]], name: str | None = ...) -> None: ...
def when(
    *given: Any, then: Any = _ABSENT, otherwise: Any = _ABSENT, name: str | None = None
) -> Any:
    """The value of the first way whose condition holds, else that of `otherwise`.

    A way is a lambda, whose steps are run only if it is taken, or a value. Without
    `otherwise` nothing happens when no condition holds, and there is no value to use.
    `name` is the step's name.
    """
    cases = _cases(given, then)
    step_name = "" if name is None else checked_step_name(name)
    for place, (_, way) in enumerate((*cases, (None, otherwise))):
        if is_body(way):
            what = "otherwise" if place == len(cases) else f"way {place + 1} of when"
            without_parameters(way, what, _USAGE)
    scope = current_scope()
    if scope is not None:
        return _traced(scope, cases, otherwise, step_name)
    for condition, way in cases:
        if condition:
            return way() if is_body(way) else way
    if otherwise is _ABSENT:
        return None
    return otherwise() if is_body(otherwise) else otherwise


def _cases(given: tuple[Any, ...], then: Any) -> list[tuple[Any, Any]]:
    if then is not _ABSENT and len(given) == 1:
        return [(given[0], then)]
    pairs = [case for case in given if isinstance(case, tuple) and len(case) == 2]
    if given and then is _ABSENT and len(pairs) == len(given):
        return pairs
    if then is _ABSENT and len(given) == 2:
        return [(given[0], given[1])]
    raise AuthoringError(f"{user_location()}: when cannot be called so: {_USAGE}")


def _traced(scope: Scope, given: Sequence[tuple[Any, Any]], otherwise: Any, name: str) -> Symbol:
    location = user_location()
    conditions = [_condition(scope, condition, location) for condition, _ in given]
    step = scope.step_name("when", name, location)
    scope.declare(WHEN, STANDARD[WHEN])
    title = f"when step {step!r} ({location})"
    because = f"it has a value only if this way of {title} is taken"
    # Without a last case a run that matches none would fail: that is AFL's rule, not Python's.
    last = None if otherwise is _ABSENT else otherwise
    ways = [
        traced(Scope(title, (), scope, because=because), WHEN, way)
        for way in (*(way for _, way in given), last)
    ]
    cases = tuple(
        WhenCase(condition, way.statements, way.yields)
        for condition, way in zip((*conditions, None), ways, strict=True)
    )
    block = Block(cases=cases, first_match=True, location=location)
    statement = StepStatement(step, Call(WHEN), (block,), location=location)
    result = scope.appended(statement, joined_hint([way.hint for way in ways]))
    if otherwise is not _ABSENT:
        return result
    why = (
        "without `otherwise` there is none when no condition holds; write otherwise=…, "
        "or otherwise=None if that is what you mean"
    )
    return Symbol(StepRef((step, RESULT)), Nowhere(title, why), f"step {step!r}")


def _condition(scope: Scope, condition: Any, location: Location) -> Expression:
    if isinstance(condition, Symbol):
        return scope.admitted(condition)
    if isinstance(condition, bool):
        return Literal(condition)
    raise AuthoringError(
        f"{location}: the condition {condition!r} of when is neither a value of the run nor True "
        f"or False: {_USAGE}"
    )
