"""Link a program: resolve its names, draw its dependencies, report all its problems.

Three passes: every facet gets a plan, every body gets its blocks and statements, then
every expression is read once to find out where its names come from and who waits for
whom. Whatever is wrong is noted and the linking goes on, so that all problems are
raised together.
"""

from __future__ import annotations

from collections import Counter

from flowengine.errors import InvalidProgram, Problem
from flowengine.program.block_linker import BlockLinker
from flowengine.program.checks import call_cycles, step_cycles, unsupported
from flowengine.program.dependencies import repeated
from flowengine.program.expressions import Constants, EvaluationError, evaluate
from flowengine.program.limits import beyond_limits
from flowengine.program.names import Names
from flowengine.program.nodes import FacetDeclaration, FacetKind, Program, SchemaDeclaration
from flowengine.program.plan import (
    BlockPlan,
    FacetPlan,
    MixinPlan,
    Plan,
    RowKind,
    StatementKind,
    StatementPlan,
)
from flowengine.program.scopes import Frame
from flowengine.program.scripts import script_statement
from flowengine.program.types import field_misfit


def link_program(program: Program, *, allow_scripts: bool = False) -> Plan:
    """Return the plan of a program, or raise all its problems at once.

    A script block is Python text that a worker will run, so whoever starts the program must
    have allowed it.
    """
    linker = _Linker(Names.of(program))
    try:
        linker.link(allow_scripts)
    except RecursionError:
        raise InvalidProgram([Problem("", "the program is nested too deeply")]) from None
    if linker.problems:
        raise InvalidProgram(linker.problems)
    return linker.plan


class _Linker(BlockLinker):
    def link(self, allow_scripts: bool) -> None:
        facets = [d for d in self.names.callables.values() if isinstance(d.node, FacetDeclaration)]
        self.problems += unsupported(self.names, allow_scripts)
        if self.problems:
            return  # linking what is not executed would report problems that are none
        self._schemas()
        for declared in facets:
            assert isinstance(declared.node, FacetDeclaration)
            facet = FacetPlan(declared.name, declared.node, schemas=self.plan.schemas)
            self.plan.facets[declared.name] = facet
        # One pass after the other: a call may be of a facet that is declared further down.
        for declared in facets:
            self._defaults(self.plan.facets[declared.name])
        for each in (self._mixins, self._facet):
            for declared in facets:
                self._seen_from = declared
                each(self.plan.facets[declared.name])
        for block in self.plan.blocks.values():
            if block.foreach is not None:
                block.foreach.lone = block.single_call_step
        self.problems += step_cycles(self._waits)
        self.problems += call_cycles(self.plan)

    def _schemas(self) -> None:
        nodes = [(d.name, d.node) for d in self.names.callables.values()]
        found = {n: node.fields for n, node in nodes if isinstance(node, SchemaDeclaration)}
        short = Counter(name.rpartition(".")[2] for name in found)
        only = {
            n.rpartition(".")[2]: f for n, f in found.items() if short[n.rpartition(".")[2]] == 1
        }
        self.plan.schemas.update({**only, **found})

    def _mixins(self, facet: FacetPlan) -> None:
        """Link the mixins of a signature: steps that run before the event or the body."""
        frame, found = Frame(RowKind.STEP, None, facet=facet), []
        for mixin in self._signature(facet, facet.name):
            where = f"{facet.name}, mixin {mixin.alias!r}"
            target = self._mixin_target(mixin, where)
            if target is None:
                continue
            address = f"{facet.name}/with-{mixin.alias}"
            plan = StatementPlan(
                address, 0, mixin.alias, StatementKind.MIXIN, BlockPlan("", 0, ""), target
            )
            given = self._given(mixin.arguments, target.name, target.params, where)
            given |= self._assumed(target, given, where)
            plan.arguments = tuple(given.items())
            self._read(given.values(), frame, plan.sources, where)
            missing = tuple(param.name for param in target.params if param.name not in given)
            if facet.kind is FacetKind.WORKFLOW:
                self._miss(target.name, target.params, given, where)
            self.plan.statements[address] = plan
            found.append(MixinPlan(mixin.alias, plan, missing))
        facet.mixins = tuple(found)

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
            if why := field_misfit(param, value, self.plan.schemas):
                self._problem(where, f"the default does not fit: {why}")
            facet.defaults[param.name] = value

    def _facet(self, facet: FacetPlan) -> None:
        for problem in beyond_limits(facet.name, facet.node):
            self._problem(facet.name[:80], problem)
        for fields, what in ((facet.params, "parameter"), (facet.returns, "return")):
            for name in repeated(field.name for field in fields):
                self._problem(facet.name, f"declares the {what} {name!r} twice")
        if facet.node.pre_script:
            run, bare = self._script_facet(), BlockPlan("", 0, "")
            script = script_statement(facet.node.pre_script, run, bare, facet.name, hops=0)
            self.plan.statements[script.address] = facet.pre_script = script
        frame = Frame(RowKind.STEP, None, facet=facet)
        facet.body = self._body(facet.node.body, frame, facet.name, facet.name)
        if facet.node.catch:
            facet.catch = self._catch(facet.node.catch, frame, facet.name, "[catch]", facet.name)
