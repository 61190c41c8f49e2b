"""The state that the parts of the linker share."""

from __future__ import annotations

from collections.abc import Iterable

from flowengine.errors import Problem
from flowengine.program.addresses import StepSource
from flowengine.program.names import Declared, Names
from flowengine.program.nodes import Literal, ScriptBlock, StepRef
from flowengine.program.plan import BlockPlan, FacetPlan, Plan, StatementKind, StatementPlan
from flowengine.program.standard import SCRIPT, SCRIPT_FACET

#: block → statement → statements of that block it waits for, through its body too
Waits = dict[BlockPlan, dict[StatementPlan, set[StatementPlan]]]
_OWNER = "$step"  # no step can have that name


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

    def add_script(
        self, script: ScriptBlock, block: BlockPlan, address: str, *, hops: int
    ) -> StatementPlan:
        """Add the step that runs a script; `hops` are the links from its scope row to its owner."""
        facet = self.plan.facets.setdefault(SCRIPT, FacetPlan(SCRIPT, SCRIPT_FACET))
        kind = StatementKind.CALL if hops else StatementKind.SCRIPT
        plan = StatementPlan(f"{address}/script", 0, "script", kind, block, facet)
        plan.arguments = (("code", Literal(script.code)), ("params", StepRef((_OWNER,))))
        plan.sources.steps[_OWNER] = StepSource(hops, None)
        self.plan.statements[plan.address] = plan
        return plan


def repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
