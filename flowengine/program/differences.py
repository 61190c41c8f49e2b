"""Compare a stored program with today's code.

A run keeps its program. Two things matter after a deploy: whether new runs of the workflow have
another program, and whether the code of its event facets still takes what the steps of stored
programs will send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flowengine.program.function_options import function_of
from flowengine.program.nodes import FacetKind, Field
from flowengine.program.plan import FacetPlan, Plan
from flowengine.program.standard import is_built_in


@dataclass(frozen=True, slots=True)
class FacetCode:
    """The parameters and results of an event facet in today's code."""

    params: tuple[Field, ...]
    returns: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    facet: str
    what: str
    breaks: bool = False  #: a step of a stored program would fail


def changed_facets(stored: Plan, today: Plan) -> Iterator[Difference]:
    """Compare the facets of two programs of one workflow."""
    for name in sorted({*stored.facets, *today.facets}):
        if is_built_in(name):
            continue
        old, new = stored.facets.get(name), today.facets.get(name)
        if new is None:
            yield Difference(name, "is no longer called")
        elif old is None:
            yield Difference(name, "is called now")
        elif changes := _changes(old, new):
            yield Difference(name, f"has {' and '.join(changes)}")


def _changes(old: FacetPlan, new: FacetPlan) -> list[str]:
    before, after = old.node, new.node
    changes = []
    if before.params != after.params:
        changes.append("other parameters")
    if before.returns != after.returns:
        changes.append("other results")
    if (before.body, before.catch, before.pre_script) != (
        after.body,
        after.catch,
        after.pre_script,
    ):
        changes.append("another body")
    if (before.mixins, before.options) != (after.mixins, after.options):
        changes.append("other options")
    if before.function != after.function:
        changes.append("another source")
    return changes


def refused_calls(stored: Plan, code: Mapping[str, FacetCode]) -> Iterator[Difference]:
    """Yield what the code of event facets does not take of the calls in a stored program.

    And, without `breaks`, results of another type: steps behind them may not take these.
    """
    for name, facet in sorted(stored.facets.items()):
        if facet.kind is not FacetKind.EVENT or is_built_in(name):
            continue
        today = code.get(name)
        if today is None:
            yield Difference(name, _no_code(name, code), breaks=True)
            continue
        yield from _refused(name, facet, today, _sent(stored, name))
        if not _same(facet.returns, today.returns):
            yield Difference(name, "returns another type")


def _no_code(name: str, code: Mapping[str, FacetCode]) -> str:
    found = function_of(name)
    if found is None:
        return "has no code: its steps wait for ever"
    function, version = found
    known = sorted(v for n, v in filter(None, map(function_of, code)) if n == function)
    has = f"; the code has version {', '.join(map(str, known))}" if known else ""
    return (
        f"has no code{has}: its runs wait for ever; keep the earlier function as "
        f"@workflow(name={function!r}, version={version})"
    )


def _sent(stored: Plan, name: str) -> set[str]:
    """Return the parameters that steps of a program send to a facet."""
    calls = stored.callers.get(name, [])
    sent = {argument for call in calls for argument, _ in call.arguments}
    return sent | stored.facets[name].defaults.keys()


def _refused(name: str, facet: FacetPlan, code: FacetCode, sent: set[str]) -> Iterator[Difference]:
    declared = {field.name: field for field in facet.params}
    taken = {field.name: field for field in code.params}
    for param in sorted(sent - taken.keys()):
        yield Difference(name, f"no longer takes {param!r}, which is sent", breaks=True)
    for param, field in taken.items():
        if param not in sent and field.default is None:
            yield Difference(name, f"needs {param!r}, which is not sent", breaks=True)
        elif param in sent and param in declared and not _same([declared[param]], [field]):
            what = f"takes {_type(field)} for {param!r}, {_type(declared[param])} is sent"
            yield Difference(name, what, breaks=True)


def _same(old: Sequence[Field], new: Sequence[Field]) -> bool:
    return [(f.name, f.type, f.schema) for f in old] == [(f.name, f.type, f.schema) for f in new]


def _type(field: Field) -> str:
    if field.schema is not None:
        return str(field.schema.get("title") or field.schema.get("type") or "a schema")
    return str(field.type)
