"""The state that the parts of the linker share: names, the plan so far, and problems.

Names are resolved when a program is loaded. A qualified name is exact. A short name means the
facet of the own namespace, else the one that a used namespace declares, else the only one in the
program. Two candidates at the same distance are an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flowengine.errors import Problem
from flowengine.program import nodes
from flowengine.program.addresses import StepSource
from flowengine.program.limits import Limits
from flowengine.program.plan import BlockPlan, FacetPlan, Plan, StatementKind, StatementPlan
from flowengine.program.standard import CALLABLE, NAMESPACE, SCRIPT, SCRIPT_FACET, STANDARD
from flowengine.program.suggestions import Suggestions
from flowengine.program.validator import Checks

#: block → statement → statements of that block it waits for, through its body too
Waits = dict[BlockPlan, dict[StatementPlan, set[StatementPlan]]]
_OWNER = "$step"  # no step can have that name


@dataclass(frozen=True, slots=True)
class Declared:
    """A declaration with its namespace."""

    name: str  #: qualified
    namespace: str
    uses: tuple[str, ...]
    node: nodes.FacetDeclaration | nodes.SchemaDeclaration | nodes.ImplicitDeclaration


class Names:
    def __init__(self, program: nodes.Program) -> None:
        self.program = program
        self.callables: dict[str, Declared] = {}
        self.implicits: list[Declared] = []
        self.problems: list[Problem] = []
        self.suggestions = Suggestions()
        for declared in _declared(program.declarations, "", ()):
            if isinstance(declared.node, nodes.ImplicitDeclaration):
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
        return f"unknown facet {target!r}{self.suggestions.near(target, self.callables)}"


def _declared(
    declarations: tuple[nodes.Declaration, ...], namespace: str, uses: tuple[str, ...]
) -> Iterator[Declared]:
    for node in declarations:
        qualified = f"{namespace}.{node.name}" if namespace else node.name
        if isinstance(node, nodes.Namespace):
            yield from _declared(node.declarations, qualified, uses + node.uses)
        else:
            yield Declared(qualified, namespace, uses, node)


class LinkContext:
    """The names of a program, its plan so far, and its problems."""

    declared: Declared  #: the facet that is being linked: names are resolved from its place
    is_stored = False  #: see `link_program`

    def __init__(self, names: Names, limits: Limits) -> None:
        self.names = names
        self.plan = Plan(limits=limits)
        self.problems = names.problems
        self.did_you_mean = names.suggestions.near
        self._reported: set[Problem] = set()
        self.waits: Waits = {}
        self.checks = Checks(limits.max_schema_checks)  #: of all constants of the program

    def report(self, where: str, what: str) -> None:
        """Note a problem, once; linking goes on, so that all problems are raised together."""
        problem = Problem(where, what)
        if problem not in self._reported:
            self._reported.add(problem)
            self.problems.append(problem)

    def refuse(self, where: str, what: str) -> None:
        """Note a problem of a new program; earlier versions have accepted and stored some."""
        if not self.is_stored:
            self.report(where, what)

    def resolve(self, target: str) -> Declared | str:
        """Return the declaration of a name, or the reason why there is none."""
        found = self.names.resolve(target, self.declared)
        if target in CALLABLE and isinstance(found, str):
            node = STANDARD[target]
            if target not in self.plan.facets:
                self.plan.facets[target] = facet = FacetPlan(target, node)
                constants = [(f.name, f.default) for f in node.params]
                facet.defaults = {n: c.value for n, c in constants if isinstance(c, nodes.Literal)}
            return Declared(target, NAMESPACE, (), node)
        return found

    def add_script(
        self, script: nodes.ScriptBlock, block: BlockPlan, address: str, *, hops: int
    ) -> StatementPlan:
        """Add the step that runs a script; `hops` are the links from its scope row to its owner."""
        facet = self.plan.facets.setdefault(SCRIPT, FacetPlan(SCRIPT, SCRIPT_FACET))
        kind = StatementKind.CALL if hops else StatementKind.SCRIPT
        plan = StatementPlan(f"{address}/script", 0, "script", kind, block, facet)
        plan.arguments = (
            ("code", nodes.Literal(script.code)),
            ("params", nodes.StepRef((_OWNER,))),
        )
        plan.sources.steps[_OWNER] = StepSource(hops, None)
        self.plan.statements[plan.address] = plan
        return plan


def repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
