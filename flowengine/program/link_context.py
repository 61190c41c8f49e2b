"""The state that the parts of the linker share."""

from __future__ import annotations

from collections.abc import Iterable

from flowengine.errors import Problem
from flowengine.program.names import Declared, Names
from flowengine.program.plan import BlockPlan, FacetPlan, Plan, StatementPlan
from flowengine.program.scripts import SCRIPT, script_facet

#: block → statement → statements of that block it waits for, through its body too
Waits = dict[BlockPlan, dict[StatementPlan, set[StatementPlan]]]


class LinkContext:
    """The names of a program, its plan so far, and its problems."""

    declared: Declared  #: the facet that is being linked: names are resolved from its place

    def __init__(self, names: Names) -> None:
        self.names = names
        self.plan = Plan()
        self.problems: list[Problem] = list(names.problems)
        self.waits: Waits = {}

    def report(self, where: str, what: str) -> None:
        """Note a problem, once; linking goes on, so that all problems are raised together."""
        problem = Problem(where, what)
        if problem not in self.problems:
            self.problems.append(problem)

    def resolve(self, target: str) -> Declared | str:
        """Return the declaration of a name, or the reason why there is none."""
        return self.names.resolve(target, self.declared)

    def script_facet(self) -> FacetPlan:
        """Return the facet that runs scripts: part of a program only when it has some."""
        return self.plan.facets.setdefault(SCRIPT, script_facet())


def repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
