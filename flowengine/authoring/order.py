"""``facet.after(step)``: order between steps that pass no value to each other."""

from __future__ import annotations

import reprlib
from typing import TypeAlias

from flowengine.authoring.locations import user_location
from flowengine.authoring.symbols import Symbol, SymbolInfo, Visibility, info_of
from flowengine.errors import AuthoringError
from flowengine.program import nodes
from flowengine.program.expressions import references

#: The steps that a step comes after, each with the body in which it is known.
Order: TypeAlias = tuple[tuple[SymbolInfo, nodes.After], ...]


def preceding_steps(title: str, steps: tuple[object, ...], on: str) -> Order:
    """Return the order after the steps with these results."""
    if on not in ("completed", "ended"):
        raise AuthoringError(
            f"{user_location()}: {title}: on={on!r} is neither 'completed' nor 'ended'"
        )
    order = []
    for value in steps:
        info = info_of(value) if isinstance(value, Symbol) else None
        read = references(info.expression) if info else ()
        names = {r.path[0] for r in read if isinstance(r, nodes.StepRef)}
        if info is None or not names:
            label = info.label if info else reprlib.repr(value)
            raise AuthoringError(
                f"{user_location()}: {title} cannot come after {label}, which is not the result of "
                "a step; give the value that the call of a facet returned, or that of "
                "start(...).result()"
            )
        order += [(info, nodes.After(name, on == "ended")) for name in sorted(names)]
    return tuple(order)


def after_nodes(order: Order | None, here: Visibility) -> tuple[nodes.After, ...]:
    """Return the order of a step in this body; raise if a step is not visible here."""
    for info, _ in order or ():
        if not here.sees(info.visibility):
            raise info.visibility.escape_error(info.label)
    return tuple(dict.fromkeys(after for _, after in order or ()))
