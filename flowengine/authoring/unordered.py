"""Find steps that run at the same time although their author may mean one after the other.

Steps are ordered by the values they pass. ``create_table(); insert_rows()`` passes none, so both
begin at once. That may be meant; `flowengine check` warns of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator

from flowengine.program import nodes

_Part = nodes.Block | nodes.WhenCase | nodes.CatchClause


def unordered_steps(
    declaration: nodes.FacetDeclaration, events: frozenset[str], meant: Container[str]
) -> Iterator[tuple[nodes.Location, str]]:
    """Yield a warning, with its place, for each block with steps that nothing orders.

    `events` are the names of event facets: other steps have no effects of their own. Steps that
    are `meant` to be unordered are left out.
    """
    parts: list[_Part] = [*declaration.body, *([declaration.catch] if declaration.catch else [])]
    while parts:
        part = parts.pop()
        steps = [s for s in part.statements if isinstance(s, nodes.StepStatement)]
        for step in steps:
            parts += [*step.body, *step.always, *([step.catch] if step.catch else [])]
        if not isinstance(part, nodes.WhenCase):
            parts += part.cases
        free = [s for s in steps if s.call.target in events and s.name not in meant]
        yield from _unordered(part, steps, free)


def _unordered(
    part: _Part, steps: list[nodes.StepStatement], free: list[nodes.StepStatement]
) -> Iterator[tuple[nodes.Location, str]]:
    mentions = {step.name: set(_mentioned(step)) for step in steps}
    used = set(_mentioned(part.yields)).union(*mentions.values()) if steps else set()
    for step in free:
        if step.name in used:
            continue
        earlier = _before(step.name, mentions)
        beside = [s for s in free if s is not step and s.name not in earlier]
        if beside and step.location is not None:
            others = ", ".join(repr(s.name) for s in beside[:3]) + (" …" if beside[3:] else "")
            yield (
                step.location,
                f"step {step.name!r} runs at the same time as {others}: nothing uses its result "
                f"and nothing orders them. If one must wait, write {_short(beside[0])}.after(…)(…) "
                f"with the result of the other; if none must, {_short(step)}.after()(…)",
            )
            return  # one warning for a block


def _short(step: nodes.StepStatement) -> str:
    return step.call.target.rpartition(".")[2]


def _before(name: str, mentions: dict[str, set[str]]) -> set[str]:
    """Return the steps of the block that a step waits for, directly or not."""
    before: set[str] = set()
    pending = [name]
    while pending:
        for other in mentions.get(pending.pop(), ()):
            if other in mentions and other not in before:
                before.add(other)
                pending.append(other)
    return before


def _mentioned(node: object) -> Iterator[str]:
    """Yield the names of steps that a part of a program reads or comes after."""
    match node:
        case nodes.StepRef(path):
            yield path[0]
        case nodes.After(step):
            yield step
        case tuple():
            for each in node:
                yield from _mentioned(each)
        case _ if dataclasses.is_dataclass(node):
            for field in dataclasses.fields(node):
                yield from _mentioned(getattr(node, field.name))
