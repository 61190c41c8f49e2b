"""Do the same for each item of a list, in a run or in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, cast

from flowengine.authoring.scopes import checked_step_name, current_scope
from flowengine.authoring.symbols import Symbol, facts_of

T = TypeVar("T")
R = TypeVar("R")


def foreach(items: Iterable[T], body: Callable[[T], R], *, name: str | None = None) -> list[R]:
    """The results of a body called with each item, in the order of the items.

    In a workflow all items are worked on side by side, however many the run finds
    there; `name` is the step's name. Outside it is a list comprehension.
    """
    step_name = "" if name is None else checked_step_name(name)
    scope = current_scope()
    if scope is not None:
        return cast(list[R], scope.foreach(items, body, step_name))
    if isinstance(items, Symbol):
        facts = facts_of(items)
        raise facts.reach.escape(facts.label)
    return [body(item) for item in items]
