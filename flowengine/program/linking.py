"""Link a program: resolve its names, draw its dependencies, report all its problems.

Three passes: every facet gets a plan, every body gets its blocks and statements, then
every expression is read once to find out where its names come from and who waits for
whom. Whatever is wrong is noted and the linking goes on, so that all problems are
raised together.
"""

from __future__ import annotations

from flowengine.errors import InvalidProgram
from flowengine.program.checks import call_cycles, step_cycles, unsupported
from flowengine.program.expressions import Constants, EvaluationError, evaluate
from flowengine.program.linking_blocks import BlockLinker
from flowengine.program.names import Names
from flowengine.program.nodes import FacetDeclaration, Program
from flowengine.program.plan import FacetPlan, Plan, RowKind
from flowengine.program.scopes import Frame
from flowengine.program.types import field_misfit
from flowengine.program.wiring import repeated


def link_program(program: Program) -> Plan:
    """Return the plan of a program, or raise all its problems at once."""
    linker = _Linker(Names.of(program))
    linker.link()
    if linker.problems:
        raise InvalidProgram(linker.problems)
    return linker.plan


class _Linker(BlockLinker):
    def link(self) -> None:
        facets = [d for d in self.names.callables.values() if isinstance(d.node, FacetDeclaration)]
        self.problems += unsupported(self.names)
        if self.problems:
            return  # linking what is not executed would report problems that are none
        for declared in facets:
            assert isinstance(declared.node, FacetDeclaration)
            self.plan.facets[declared.name] = FacetPlan(declared.name, declared.node)
        for declared in facets:
            self._defaults(self.plan.facets[declared.name])
        for declared in facets:
            self._seen_from = declared
            self._facet(self.plan.facets[declared.name])
        self.problems += step_cycles(self._waits)
        self.problems += call_cycles(self.plan)

    def _defaults(self, facet: FacetPlan) -> None:
        for param in facet.params:
            if param.default is None:
                continue
            where = f"{facet.name}, parameter {param.name!r}"
            try:
                value = evaluate(param.default, Constants())
            except EvaluationError as problem:
                self._problem(where, f"the default cannot be evaluated: {problem}")
                continue
            if why := field_misfit(param, value):
                self._problem(where, f"the default does not fit: {why}")
            facet.defaults[param.name] = value

    def _facet(self, facet: FacetPlan) -> None:
        for fields, what in ((facet.params, "parameter"), (facet.returns, "return")):
            for name in repeated(field.name for field in fields):
                self._problem(facet.name, f"declares the {what} {name!r} twice")
        frame = Frame(RowKind.STEP, None, facet=facet)
        facet.body = self._body(facet.node.body, frame, facet.name, facet.name)
        if facet.node.catch:
            facet.catch = self._catch(facet.node.catch, frame, facet.name, "[catch]", facet.name)
