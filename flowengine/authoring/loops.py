"""Do the same for each item of a list, in a run or in plain Python."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast, overload

from flowengine.authoring.bodies import with_one_parameter
from flowengine.authoring.locations import location_of, user_location
from flowengine.authoring.scopes import Scope, checked_step_name, current_scope
from flowengine.authoring.shapes import item_hint
from flowengine.authoring.symbols import Symbol, facts_of
from flowengine.errors import AuthoringError
from flowengine.program.nodes import (
    Argument,
    ArrayLiteral,
    Block,
    Call,
    ForeachClause,
    InputRef,
    StepRef,
    StepStatement,
)
from flowengine.program.standard import COLLECTING, ERRORS, FOREACH, ITEMS, STANDARD

T = TypeVar("T")
R = TypeVar("R")

_USAGE = "foreach(items, lambda item: …)"


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why one item of a foreach failed."""

    index: int  #: which item, counted from 0
    type: str  #: the name of the exception's class
    message: str
    path: str  #: the step that failed first


@dataclass(frozen=True, slots=True)
class Collected(Generic[R]):
    """What a foreach gives that collects the errors of its items."""

    results: list[R]  #: of the items that completed, in the order of the items
    errors: list[ItemError]  #: of the others, in the same order


@overload
def foreach(
    items: Iterable[T],
    body: Callable[[T], R],
    *,
    limit: int | None = ...,
    collect_errors: Literal[False] = ...,
    name: str | None = ...,
) -> list[R]: ...
@overload
def foreach(
    items: Iterable[T],
    body: Callable[[T], R],
    *,
    limit: int | None = ...,
    collect_errors: Literal[True],
    name: str | None = ...,
) -> Collected[R]: ...
def foreach(
    items: Iterable[Any],
    body: Callable[[Any], Any],
    *,
    limit: int | None = None,
    collect_errors: bool = False,
    name: str | None = None,
) -> Any:
    """The results of a body called with each item, in the order of the items.

    In a workflow all items are worked on side by side, however many the run finds
    there, or at most `limit` of them at a time. With `collect_errors` an item that fails
    does not fail the loop: the answer then has `results` and `errors`. `name` is the
    step's name. Outside it is a list comprehension.
    """
    step_name = "" if name is None else checked_step_name(name)
    _check_limit(limit)
    scope = current_scope()
    if scope is not None:
        return _traced(scope, items, body, limit, collect_errors, step_name)
    if isinstance(items, Symbol):
        facts = facts_of(items)
        raise facts.reach.escape(facts.label)
    if collect_errors:
        return _collected(items, body)
    return [body(item) for item in items]


def _traced(
    scope: Scope,
    items: Any,
    body: Callable[[Any], Any],
    limit: Any,
    collect_errors: bool,
    name: str,
) -> list[Any] | Collected[Any]:
    location = user_location()
    variable = scope.variable(with_one_parameter(body, "the body of foreach", _USAGE))
    if not isinstance(items, Symbol):
        try:
            items = list(items)
        except TypeError:
            raise AuthoringError(f"{location}: foreach cannot go through {items!r}") from None
    iterated = scope.admitted(items)
    step = scope.step_name("foreach", name, location)
    scope.declare(FOREACH, COLLECTING if collect_errors else STANDARD[FOREACH])
    title = f"foreach step {step!r} ({location})"
    inner = Scope(
        title,
        [variable],
        scope,
        because=f"it has another value for each item of {title}",
        items=iterated,
    )
    most = None if limit is None else inner.admitted(limit)
    with inner.entered():
        hint = item_hint(facts_of(items).hint) if isinstance(items, Symbol) else Any
        item = Symbol(InputRef((variable,)), inner, f"foreach variable {variable!r}", hint)
        returned = body(item)
        result = ArrayLiteral((inner.admitted(returned),))
    there = location_of(body)
    block = Block(
        statements=tuple(inner.statements),
        yields=inner.yielded(FOREACH, result, there),
        foreach=ForeachClause(variable, InputRef((ITEMS,)), most, collect_errors),
        location=there,
    )
    call = Call(FOREACH, (Argument(ITEMS, iterated),))
    of_results: Any = facts_of(returned).hint if isinstance(returned, Symbol) else Any
    statement = StepStatement(step, call, (block,), location=location)
    results = scope.appended(statement, types.GenericAlias(list, (of_results,)))
    if not collect_errors:
        return cast(list[Any], results)
    label = f"the errors of step {step!r}"
    errors = Symbol(StepRef((step, ERRORS)), scope, label, list[ItemError])
    return Collected(cast(list[Any], results), cast(list[ItemError], errors))


def _check_limit(limit: Any) -> None:
    if limit is None or isinstance(limit, Symbol):
        return
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise AuthoringError(
            f"{user_location()}: foreach(limit={limit!r}) is not a whole number of items, 1 or more"
        )


def _collected(items: Iterable[T], body: Callable[[T], R]) -> Collected[R]:
    results: list[R] = []
    errors: list[ItemError] = []
    for index, item in enumerate(items):
        try:
            results.append(body(item))
        except Exception as problem:
            kind = type(problem).__name__
            errors.append(ItemError(index, kind, str(problem) or kind, ""))
    return Collected(results, errors)
