"""The workflow of a shape: one for all canvases of that shape, traced once in a process.

It is in no registry: a run keeps its program, and every start makes the same one again.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from hashlib import blake2b
from typing import Any

from flowengine.authoring.attempts import CaughtError, attempt
from flowengine.authoring.canvas.shapes import (
    Each,
    InTurn,
    Linked,
    Members,
    Shape,
    Step,
    Watched,
)
from flowengine.authoring.decorators import named_workflow
from flowengine.authoring.facets import Workflow
from flowengine.authoring.loops import foreach
from flowengine.authoring.registry import event_facet_named
from flowengine.authoring.symbols import Symbol
from flowengine.authoring.waits import sleep, sleep_until

#: The namespace of workflows that their author has not named.
NAMESPACE = "canvas"
_KEPT = 256  #: shapes of a process whose program is not made again

Slots = Iterator[Any]


@dataclass(frozen=True)
class _Done:
    """The end of a part: its result, and the steps that come before the next part."""

    value: Any = None
    steps: tuple[Any, ...] = ()


def workflow_of(shape: Shape, inputs: tuple[str, ...], name: str = "") -> Workflow[..., Any]:
    """Return the workflow of a shape with inputs of these names; without a name it is derived."""
    # A module that is loaded again has other facets, and so another program.
    facets = {facet: event_facet_named(facet) for facet in _facets(shape)}
    return _workflow_of(shape, inputs, name, tuple(facets.values()))


@lru_cache(maxsize=_KEPT)
def _workflow_of(
    shape: Shape, inputs: tuple[str, ...], name: str, facets: tuple[Any, ...]
) -> Workflow[..., Any]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature([inspect.Parameter(each, keyword) for each in inputs])

    def canvas(**given: Any) -> Any:
        return _emit(shape, _Done(), iter([given[each] for each in inputs])).value

    canvas.__signature__ = signature  # type: ignore[attr-defined]
    canvas.__annotations__ = {}
    return named_workflow(canvas, name or derived_name(shape))


def derived_name(shape: Shape) -> str:
    """Return a name that says where a canvas begins and ends, and which shape it has."""
    facets = [facet.rpartition(".")[2] for facet in _facets(shape, with_links=False)]
    facets = facets or ["nothing"]
    ends = facets[0] if len(facets) == 1 else f"{facets[0]}_to_{facets[-1]}"
    return f"{NAMESPACE}.{ends}_{blake2b(repr(shape).encode(), digest_size=4).hexdigest()}"


def _facets(shape: Shape, *, with_links: bool = True) -> list[str]:
    """Return the facets of a shape in their order, as often as they are called."""
    beside: tuple[Shape, ...] = ()
    match shape:
        case Step(facet):
            return [facet]
        case InTurn(inner) | Members(inner):
            pass
        case Each(member):
            inner = (member,)
        case Linked(linked, beside):
            inner = (linked,)
        case Watched(watched, beside):
            inner = (watched,)
    shapes = (*inner, *beside) if with_links else inner
    return [facet for each in shapes for facet in _facets(each, with_links=with_links)]


def _emit(shape: Shape, before: _Done, slots: Slots) -> _Done:
    """Append the steps of a shape; it takes its constants from the slots, in their order."""
    match shape:
        case Step():
            return _step(shape, before, slots)
        case InTurn(parts):
            return reduce(lambda done, part: _emit(part, done, slots), parts, before)
        case Members():
            return _members(shape, before, slots)
        case Each():
            return _each(shape, before, slots)
        case Linked(inner, links):
            done = _emit(inner, before, slots)
            for link in links:
                # Its failure is seen at its step, and fails nothing else.
                attempt(
                    lambda link=link: _emit(link, done, slots).value,  # type: ignore[misc]
                    catch=lambda error: None,
                    name=None,
                )
            return done
        case Watched():
            return _watched(shape, before, slots)


def _step(shape: Step, before: _Done, slots: Slots) -> _Done:
    facet = event_facet_named(shape.facet)
    assert facet is not None
    order = before.steps
    if shape.sleeps:
        until = next(slots)
        slept: Any = sleep(until) if shape.sleeps == "countdown" else sleep_until(until)
        order = (slept.after(*before.steps) if before.steps else slept,)
    elif shape.takes and isinstance(before.value, Symbol):
        order = ()  # the value is order enough
    given = {name: next(slots) for name in shape.constants}
    if shape.takes:
        given[shape.takes] = before.value
    called = facet.after(*order) if order else facet
    if shape.expires is not None:
        called = called.within(shape.expires)
    args, kwargs = _arguments(facet.definition.signature.parameters, given)
    made = called(*args, **kwargs)
    return _Done(made, (made,))


def _arguments(parameters: Any, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    by_place = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    args = [given[name] for name in by_place if name in given]
    return args, {name: value for name, value in given.items() if name not in by_place}


def _members(shape: Members, before: _Done, slots: Slots) -> _Done:
    if not shape.parts:
        return _Done([], before.steps)
    done = [_emit(part, before, slots) for part in shape.parts]
    steps = tuple(step for each in done for step in each.steps)
    if not shape.runs:
        return _Done([each.value for each in done], steps)
    lists = [each.value if place in shape.runs else [each.value] for place, each in enumerate(done)]
    return _Done(reduce(operator.add, lists), steps)


def _each(shape: Each, before: _Done, slots: Slots) -> _Done:
    def body(item: Any) -> Any:
        own = [item] if shape.slots == 1 else [item[place] for place in range(shape.slots)]
        return _emit(shape.member, before, iter(own)).value

    made = foreach(next(slots), body, limit=1 if shape.one_by_one else None)
    return _Done(made, (made,))


def _watched(shape: Watched, before: _Done, slots: Slots) -> _Done:
    def report(error: CaughtError) -> None:
        failure = {"type": error.type, "message": error.message, "path": error.path}
        for errback in shape.errbacks:
            _emit(errback, _Done(failure), slots)

    made = attempt(lambda: _emit(shape.inner, before, slots).value, failed=report, reraise=True)
    return _Done(made, (made,))
