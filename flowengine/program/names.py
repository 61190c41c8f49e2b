"""Resolve the names of a program when it is loaded.

A qualified name is exact. A short name means the facet of the own namespace, else the one that
a used namespace declares, else the only one in the program. Two candidates at the same distance
are an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from flowengine.errors import Problem
from flowengine.program.nodes import (
    Declaration,
    FacetDeclaration,
    ImplicitDeclaration,
    Namespace,
    Program,
    SchemaDeclaration,
)


@dataclass(frozen=True, slots=True)
class Declared:
    """A declaration with its namespace."""

    name: str  #: qualified
    namespace: str
    uses: tuple[str, ...]
    node: FacetDeclaration | SchemaDeclaration | ImplicitDeclaration


@dataclass
class Names:
    callables: dict[str, Declared] = field(default_factory=dict)
    implicits: list[Declared] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def of(cls, program: Program) -> Names:
        names = cls()
        for declared in _declared(program.declarations, "", ()):
            names._add(declared)
        return names

    def _add(self, declared: Declared) -> None:
        if isinstance(declared.node, ImplicitDeclaration):
            self.implicits.append(declared)
        elif declared.name in self.callables:
            self.problems.append(Problem(declared.name, "is declared twice in this program"))
        else:
            self.callables[declared.name] = declared

    def resolve(self, target: str, seen_from: Declared) -> Declared | str:
        """Return the declaration of a name, or the reason why there is none."""
        own = f"{seen_from.namespace}.{target}" if seen_from.namespace else target
        for exact in (own, target):
            if exact in self.callables:
                return self.callables[exact]
        if "." in target:
            return self._unknown(target)
        used = [f"{namespace}.{target}" for namespace in seen_from.uses]
        candidates = [name for name in dict.fromkeys(used) if name in self.callables]
        candidates = candidates or [n for n in self.callables if n.rpartition(".")[2] == target]
        if len(candidates) == 1:
            return self.callables[candidates[0]]
        if candidates:
            choice = " and ".join(candidates)
            return f"{target!r} is ambiguous: {choice} have that name; write the qualified name"
        return self._unknown(target)

    def _unknown(self, target: str) -> str:
        return f"unknown facet {target!r}{did_you_mean(target, self.callables)}"


def did_you_mean(name: str, known: Sequence[str] | dict[str, Declared]) -> str:
    """Return a hint at the most similar name, or nothing."""
    short = {candidate.rpartition(".")[2]: candidate for candidate in known}
    near = get_close_matches(name, [*known, *short], n=1)
    return f"; did you mean {short.get(near[0], near[0])!r}?" if near else ""


def _declared(
    declarations: tuple[Declaration, ...], namespace: str, uses: tuple[str, ...]
) -> Iterator[Declared]:
    for node in declarations:
        qualified = f"{namespace}.{node.name}" if namespace else node.name
        if isinstance(node, Namespace):
            yield from _declared(node.declarations, qualified, uses + node.uses)
        else:
            yield Declared(qualified, namespace, uses, node)
