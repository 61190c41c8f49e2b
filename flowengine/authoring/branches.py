"""``when``: choose one of several branches, in a run or in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from flowengine.authoring.bodies import is_body, no_parameters, trace_body
from flowengine.authoring.current_function import refuse_construct
from flowengine.authoring.locations import user_location
from flowengine.authoring.scopes import Scope, checked_step_name, current_scope
from flowengine.authoring.shapes import joined_hint
from flowengine.authoring.symbols import NoValue, Symbol
from flowengine.errors import AuthoringError
from flowengine.program import nodes
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
    """Return the value of the first branch whose condition holds, else of `otherwise`.

    A branch is a value, or a lambda whose steps run only if it is taken. Without
    `otherwise` the call has no value. `name` is the step's name.
    """
    cases = _cases(given, then)
    step_name = "" if name is None else checked_step_name(name)
    for place, (_, branch) in enumerate((*cases, (None, otherwise))):
        if is_body(branch):
            what = "otherwise" if place == len(cases) else f"branch {place + 1} of when"
            no_parameters(branch, what, _USAGE)
    scope = current_scope()
    if scope is not None:
        return _trace(scope, cases, otherwise, step_name)
    refuse_construct("when")
    for condition, branch in cases:
        if condition:
            return branch() if is_body(branch) else branch
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
    raise AuthoringError(f"{user_location()}: when does not take these arguments: {_USAGE}")


def _trace(scope: Scope, given: Sequence[tuple[Any, Any]], otherwise: Any, name: str) -> Symbol:
    location = user_location()
    conditions = [_condition(scope, condition, location) for condition, _ in given]
    step = scope.step_name("when", name, location)
    scope.declare(WHEN, STANDARD[WHEN])
    title = f"when step {step!r} ({location})"
    reason = f"it has a value only if this branch of {title} is taken"
    # In AFL a run that matches no case fails; Python's `if` does not. So add a last case.
    last = None if otherwise is _ABSENT else otherwise
    branches = [
        trace_body(Scope(title, (), scope, reason=reason), WHEN, branch)
        for branch in (*(branch for _, branch in given), last)
    ]
    cases = tuple(
        nodes.WhenCase(condition, branch.statements, branch.yields)
        for condition, branch in zip((*conditions, None), branches, strict=True)
    )
    block = nodes.Block(cases=cases, first_match=True, location=location)
    statement = nodes.StepStatement(step, nodes.Call(WHEN), (block,), location=location)
    result = scope.append(statement, joined_hint([branch.hint for branch in branches]))
    if otherwise is not _ABSENT:
        return result
    why = (
        "`when` without `otherwise` has none if no condition holds; write otherwise=…, "
        "or otherwise=None"
    )
    return Symbol(nodes.StepRef((step, RESULT)), NoValue(title, why), f"step {step!r}")


def _condition(scope: Scope, condition: Any, location: nodes.Location) -> nodes.Expression:
    if isinstance(condition, Symbol):
        return scope.to_expression(condition)
    if isinstance(condition, bool):
        return nodes.Literal(condition)
    raise AuthoringError(
        f"{location}: the condition {condition!r} of when is neither a value of the run nor True "
        f"or False: {_USAGE}"
    )
