"""``foreach``: call a body with each item of a list, in a run or in plain Python."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar, cast, overload

from flowengine.authoring.bodies import one_parameter
from flowengine.authoring.current_function import refuse_construct
from flowengine.authoring.deadlines import deadline_mixins
from flowengine.authoring.locations import location_of, user_location
from flowengine.authoring.scopes import Scope, checked_step_name, current_scope
from flowengine.authoring.shapes import item_hint
from flowengine.authoring.symbols import Symbol, info_of
from flowengine.errors import AuthoringError
from flowengine.program import nodes
from flowengine.program.standard import COLLECTING, ERRORS, FOREACH, ITEMS, STANDARD

T = TypeVar("T")
R = TypeVar("R")

_USAGE = "foreach(items, lambda item: …)"


@dataclass(frozen=True, slots=True)
class ItemError:
    """The error of one item of a foreach."""

    index: int  #: of the item, from 0
    type: str  #: the name of the exception's class
    message: str
    path: str  #: the step that failed first


@dataclass(frozen=True, slots=True)
class Collected(Generic[R]):
    """The result of a foreach with `collect_errors`."""

    results: list[R]  #: of the completed items, in item order
    errors: list[ItemError]  #: of the failed items, in item order


@overload
def foreach(
    items: Iterable[T],
    body: Callable[[T], R],
    *,
    limit: int | None = ...,
    collect_errors: Literal[False] = ...,
    deadline: timedelta | float | None = ...,
    name: str | None = ...,
) -> list[R]: ...
@overload
def foreach(
    items: Iterable[T],
    body: Callable[[T], R],
    *,
    limit: int | None = ...,
    collect_errors: Literal[True],
    deadline: timedelta | float | None = ...,
    name: str | None = ...,
) -> Collected[R]: ...
def foreach(
    items: Iterable[Any],
    body: Callable[[Any], Any],
    *,
    limit: int | None = None,
    collect_errors: bool = False,
    deadline: timedelta | float | None = None,
    name: str | None = None,
) -> Any:
    """Return the results of a body called with each item, in item order.

    A run processes all items in parallel, or at most `limit` at a time. With
    `collect_errors` a failed item does not fail the loop; the result then has `results`
    and `errors`. A loop that has not ended at its `deadline`, in seconds or as a timedelta, fails
    with DeadlineExceeded. `name` is the step's name. Outside a workflow it is a list comprehension.
    """
    step_name = "" if name is None else checked_step_name(name)
    _check_limit(limit)
    mixins = deadline_mixins(deadline)
    scope = current_scope()
    if scope is not None:
        return _trace(scope, items, body, limit, collect_errors, step_name, mixins)
    refuse_construct("foreach")
    if isinstance(items, Symbol):
        info = info_of(items)
        raise info.visibility.escape_error(info.label)
    if collect_errors:
        return _collect(items, body)
    return [body(item) for item in items]


def _trace(
    scope: Scope,
    items: Any,
    body: Callable[[Any], Any],
    limit: Any,
    collect_errors: bool,
    name: str,
    mixins: tuple[nodes.Mixin, ...],
) -> list[Any] | Collected[Any]:
    location = user_location()
    variable = scope.variable(one_parameter(body, "the body of foreach", _USAGE))
    if not isinstance(items, Symbol):
        try:
            items = list(items)
        except TypeError:
            raise AuthoringError(f"{location}: foreach cannot iterate over {items!r}") from None
    iterated = scope.to_expression(items)
    step = scope.step_name("foreach", name, location)
    scope.declare(FOREACH, COLLECTING if collect_errors else STANDARD[FOREACH])
    title = f"foreach step {step!r} ({location})"
    inner = Scope(
        title,
        [variable],
        scope,
        reason=f"it has a different value for each item of {title}",
        items=iterated,
    )
    at_once = None if limit is None else inner.to_expression(limit)
    with inner.active():
        hint = item_hint(info_of(items).hint) if isinstance(items, Symbol) else Any
        item = Symbol(nodes.InputRef((variable,)), inner, f"foreach variable {variable!r}", hint)
        returned = body(item)
        result = nodes.ArrayLiteral((inner.to_expression(returned),))
    body_location = location_of(body)
    block = nodes.Block(
        statements=tuple(inner.statements),
        yields=inner.result_yield(FOREACH, result, body_location),
        foreach=nodes.ForeachClause(variable, nodes.InputRef((ITEMS,)), at_once, collect_errors),
        location=body_location,
    )
    call = nodes.Call(FOREACH, (nodes.Argument(ITEMS, iterated),), mixins)
    result_hint: Any = info_of(returned).hint if isinstance(returned, Symbol) else Any
    statement = nodes.StepStatement(step, call, (block,), location=location)
    results = scope.append(statement, types.GenericAlias(list, (result_hint,)))
    if not collect_errors:
        return cast(list[Any], results)
    label = f"the errors of step {step!r}"
    errors = Symbol(nodes.StepRef((step, ERRORS)), scope, label, list[ItemError])
    return Collected(cast(list[Any], results), cast(list[ItemError], errors))


def _check_limit(limit: Any) -> None:
    if limit is None or isinstance(limit, Symbol):
        return
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise AuthoringError(
            f"{user_location()}: foreach(limit={limit!r}) is not a whole number of items, 1 or more"
        )


def _collect(items: Iterable[T], body: Callable[[T], R]) -> Collected[R]:
    results: list[R] = []
    errors: list[ItemError] = []
    for index, item in enumerate(items):
        try:
            results.append(body(item))
        except Exception as problem:
            kind = type(problem).__name__
            errors.append(ItemError(index, kind, str(problem) or kind, ""))
    return Collected(results, errors)
