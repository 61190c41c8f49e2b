"""Link a program: resolve its names, add its dependencies, report all its problems.

Passes: every facet gets a plan, every body gets its blocks and statements with the source of
each name and an edge for each dependency, then every statement and block gets its read set. A
problem is noted and linking goes on, so that all problems are raised together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from flowengine.errors import InvalidProgram, Problem
from flowengine.program.addresses import RowKind, Sources
from flowengine.program.block_linker import BlockLinker
from flowengine.program.call_linker import CallLinker
from flowengine.program.checks import (
    broken_schemas,
    call_cycles,
    mark_recursive,
    reserved_names,
    step_cycles,
    unsupported,
)
from flowengine.program.declarations import (
    broken_fields,
    unknown_namespaces,
    with_qualified_types,
)
from flowengine.program.dependencies import DependencyLinker
from flowengine.program.expressions import Constants, EvaluationError, evaluate
from flowengine.program.limits import DEFAULT_LIMITS, Limits, beyond_limits, listed
from flowengine.program.link_context import Declared, LinkContext, Names, repeated
from flowengine.program.nodes import FacetDeclaration, FacetKind, Program, SchemaDeclaration
from flowengine.program.option_checks import (
    beyond_numbers,
    container_keys,
    contradictions,
    unknown_names,
    unused_cache,
)
from flowengine.program.plan import (
    BlockPlan,
    FacetPlan,
    MixinPlan,
    Plan,
    StatementKind,
    StatementPlan,
)
from flowengine.program.read_sets import add_read_sets
from flowengine.program.run_limits import run_limit
from flowengine.program.scopes import Frame
from flowengine.program.types import field_misfit


def link_program(
    program: Program,
    *,
    allow_scripts: bool = False,
    is_stored: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Plan:
    """Return the plan of a program, or raise all its problems at once.

    A script block is Python text that a worker runs, so the caller must allow it. A stored program
    was accepted by the version that started its run: later restrictions must not stop the run.
    """
    context = LinkContext(Names(program), limits)
    try:
        Linker(context).link(allow_scripts, is_stored)
    except RecursionError:
        raise InvalidProgram([Problem("", "the program is nested too deeply")]) from None
    if context.problems:
        raise InvalidProgram(listed(context.problems, limits.max_problems))
    context.plan.is_stored = is_stored
    return context.plan


class Linker:
    def __init__(self, context: LinkContext) -> None:
        self._context, self._plan = context, context.plan
        self._calls = CallLinker(context)
        self._dependencies = DependencyLinker(context)
        self._blocks = BlockLinker(context, self._calls, self._dependencies)

    def link(self, allow_scripts: bool, is_stored: bool) -> None:
        names = self._context.names
        declared = names.callables
        self._context.problems += unsupported(names, allow_scripts)
        if not is_stored:
            self._context.problems += reserved_names(names) + broken_schemas(names)
        if self._context.problems:
            return  # linking an unsupported construct would report problems that are none
        self._context.is_stored = is_stored
        if not is_stored:
            self._context.problems += unknown_namespaces(names) + broken_fields(names)
        self._schemas()
        for name, node in ((name, one.node) for name, one in declared.items()):
            if isinstance(node, FacetDeclaration):
                typed = self._typed(node, declared[name])
                self._plan.facets[name] = FacetPlan(name, typed, schemas=self._plan.schemas)
        # One pass after the other: a call may be of a facet that is declared further down.
        for link in (self._defaults, self._mixins, self._facet):
            for name in [name for name in declared if name in self._plan.facets]:
                self._context.declared = declared[name]
                link(self._plan.facets[name])
        for block in self._plan.blocks.values():
            if block.foreach is not None:
                block.foreach.single_call = block.single_call_step
        if not is_stored:
            events = [(name, facet.options) for name, facet in self._plan.facets.items()]
            self._context.problems += [Problem("", what) for what in contradictions(events)]
        self._context.problems += step_cycles(self._context.waits)
        self._context.problems += call_cycles(self._plan)
        mark_recursive(self._plan)
        add_read_sets(self._plan)

    def _typed(self, node: FacetDeclaration, declared: Declared) -> FacetDeclaration:
        names = self._context.names
        params = with_qualified_types(node.params, declared, names)
        returns = with_qualified_types(node.returns, declared, names)
        if params is node.params and returns is node.returns:
            return node
        return replace(node, params=params, returns=returns)

    def _schemas(self) -> None:
        names = self._context.names
        fields = {
            declared.name: with_qualified_types(declared.node.fields, declared, names)
            for declared in names.callables.values()
            if isinstance(declared.node, SchemaDeclaration)
        }
        short = {name: name.rpartition(".")[2] for name in fields}
        counts = Counter(short.values())
        unique = {short[n]: f for n, f in fields.items() if counts[short[n]] == 1}
        self._plan.schemas.update({**unique, **fields})

    def _mixins(self, facet: FacetPlan) -> None:
        """Link the mixins of a signature: steps that run before the event or the body."""
        frame, linked = Frame(RowKind.STEP, None, facet=facet), []
        if facet.kind is FacetKind.WORKFLOW:
            facet.deadline = self._calls.deadline(facet.node.mixins, facet.name)
            limit = run_limit(facet.node.mixins)
            if isinstance(limit, str):
                self._context.refuse(facet.name, limit)
            else:
                facet.runs = limit
        for mixin in (m for m in facet.node.mixins if not m.alias):
            where = f"{facet.name}, mixin {mixin.target!r}"
            self._calls.check_plain_mixin(mixin, None, where)
            if not self._context.is_stored:
                values = [argument.value for argument in mixin.arguments]
                self._dependencies.resolve(values, frame, Sources(), where)
        for mixin in self._calls.signature(facet, facet.name):
            where = f"{facet.name}, mixin {mixin.alias!r}"
            target = self._calls.mixin_target(mixin, where)
            if target is None:
                continue
            address = f"{facet.name}/with-{mixin.alias}"
            plan = StatementPlan(
                address, 0, mixin.alias, StatementKind.MIXIN, BlockPlan("", 0, ""), target
            )
            given = self._calls.given(mixin.arguments, target.name, target.params, where)
            given |= self._calls.assumed(target, given, where)
            plan.arguments = tuple(given.items())
            self._dependencies.resolve(given.values(), frame, plan.sources, where)
            known = {*given, *target.filled}
            missing = tuple(param.name for param in target.params if param.name not in known)
            if facet.kind is FacetKind.WORKFLOW:
                self._calls.check_given(target, given, where)
            self._plan.statements[address] = plan
            linked.append(MixinPlan(mixin.alias, plan, missing))
        facet.mixins = tuple(linked)

    def _defaults(self, facet: FacetPlan) -> None:
        for param in facet.params:
            if param.default is None:
                continue
            where = f"{facet.name}, parameter {param.name!r}"
            try:
                value = evaluate(param.default, Constants())
            except EvaluationError as problem:
                self._context.report(where, f"the default cannot be evaluated: {problem}")
                continue
            if why := field_misfit(param, value, self._plan.schemas, self._context.checks):
                self._context.report(where, f"the default does not fit: {why}")
            facet.defaults[param.name] = value

    def _facet(self, facet: FacetPlan) -> None:
        for problem in beyond_limits(facet.name, facet.node):
            self._context.report(facet.name[:80], problem)
        options = facet.options
        for problem in beyond_numbers(options):
            self._context.refuse(facet.name[:80], problem)
        if options.limit or options.rate or options.cache:
            params = [param.name for param in facet.params]
            problems = [*unknown_names(options, params, self._context.did_you_mean)]
            for problem in (*problems, *unused_cache(options, has_result=bool(facet.returns))):
                self._context.report(facet.name, problem)
            for problem in container_keys(options, facet.params, self._plan.schemas):
                self._context.refuse(facet.name, problem)
        for fields, what in ((facet.params, "parameter"), (facet.returns, "return")):
            for name in repeated(field.name for field in fields):
                self._context.report(facet.name, f"declares the {what} {name!r} twice")
        if facet.node.pre_script:
            script, bare = facet.node.pre_script, BlockPlan("", 0, "")
            facet.pre_script = self._context.add_script(script, bare, facet.name, hops=0)
        frame = Frame(RowKind.STEP, None, facet=facet)
        facet.body = self._blocks.body(facet.node.body, frame, facet.name, facet.name)
        if facet.node.catch:
            facet.catch = self._blocks.catch(
                facet.node.catch, frame, facet.name, "[catch]", facet.name
            )
