"""Implicit declarations: default arguments for all calls of a facet."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from flowengine.errors import Problem
from flowengine.program.expressions import references
from flowengine.program.names import Declared, Names, did_you_mean
from flowengine.program.nodes import Expression, FacetDeclaration, ImplicitDeclaration


@dataclass
class Implicits:
    """The implicit declarations of a program, by the facet they are for."""

    declared: defaultdict[str, list[Declared]] = field(default_factory=lambda: defaultdict(list))
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def of(cls, names: Names) -> Implicits:
        implicits = cls()
        for declared in names.implicits:
            implicits._add(declared, names)
        return implicits

    def _add(self, declared: Declared, names: Names) -> None:
        assert isinstance(declared.node, ImplicitDeclaration)
        where, call = f"implicit {declared.name}", declared.node.call
        resolved = names.resolve(call.target, declared)
        if isinstance(resolved, str):
            self.problems.append(Problem(where, resolved))
            return
        if not isinstance(resolved.node, FacetDeclaration):
            self.problems.append(Problem(where, f"{resolved.name!r} is a schema, not a facet"))
            return
        known = [param.name for param in resolved.node.params]
        for argument in call.arguments:
            if argument.name not in known:
                hint = did_you_mean(argument.name, known)
                what = f"{resolved.name!r} has no parameter {argument.name!r}{hint}"
                self.problems.append(Problem(where, what))
            if any(True for _ in references(argument.value)):
                what = f"argument {argument.name!r} must be a constant: it holds for every call"
                self.problems.append(Problem(where, what))
        self.declared[resolved.name].append(declared)

    def nearest(self, facet: str, seen_from: Declared) -> dict[str, Expression] | str:
        """Return the implicit arguments of calls of the facet, or why they are ambiguous.

        Those of the own namespace come first, then those of used namespaces, then all others.
        """
        declared = self.declared.get(facet, [])
        near = [d for d in declared if d.namespace == seen_from.namespace]
        near = near or [d for d in declared if d.namespace in seen_from.uses] or declared
        if len(near) > 1:
            choice = " and ".join(declared.name for declared in near)
            return f"the implicit arguments of {facet!r} are ambiguous: {choice} give them"
        nodes = [declared.node for declared in near]
        return {
            argument.name: argument.value
            for node in nodes
            if isinstance(node, ImplicitDeclaration)
            for argument in node.call.arguments
        }
