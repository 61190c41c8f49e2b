"""Link calls: the facet or schema, and the arguments.

An argument comes from the call, else from a mixin of the call, else from an implicit
declaration, else from the parameter's default.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping

from flowengine.errors import Problem
from flowengine.program import deadlines
from flowengine.program.event_options import EventOptions
from flowengine.program.expressions import Constants, EvaluationError, evaluate, references
from flowengine.program.link_context import Declared, LinkContext, Names, repeated
from flowengine.program.nodes import (
    Argument,
    Call,
    Expression,
    FacetDeclaration,
    Field,
    ImplicitDeclaration,
    MapLiteral,
    Mixin,
    SchemaDeclaration,
    StepStatement,
)
from flowengine.program.option_checks import (
    beyond_numbers,
    container_keys,
    unknown_names,
    unused_cache,
)
from flowengine.program.option_mixins import is_option, with_mixins
from flowengine.program.plan import FacetPlan, SchemaPlan, StatementKind, StatementPlan
from flowengine.program.standard import is_built_in
from flowengine.program.types import field_misfit
from flowengine.program.wait_times import time_problems

_Given = dict[str, Expression]


class Implicits:
    """Implicit declarations: default arguments for all calls of a facet."""

    def __init__(self, context: LinkContext) -> None:
        self._declared: defaultdict[str, list[Declared]] = defaultdict(list)  # by the facet's name
        for declared in context.names.implicits:
            where = f"implicit {declared.name}"
            context.problems += [Problem(where, w) for w in self._add(declared, context.names)]

    def _add(self, declared: Declared, names: Names) -> Iterator[str]:
        """Add one declaration; return its problems."""
        assert isinstance(declared.node, ImplicitDeclaration)
        call = declared.node.call
        resolved = names.resolve(call.target, declared)
        if isinstance(resolved, str):
            yield resolved
            return
        if not isinstance(resolved.node, FacetDeclaration):
            yield f"{resolved.name!r} is a schema, not a facet"
            return
        known = [param.name for param in resolved.node.params]
        for argument in call.arguments:
            if argument.name not in known:
                hint = names.suggestions.near(argument.name, known)
                yield f"{resolved.name!r} has no parameter {argument.name!r}{hint}"
            if any(True for _ in references(argument.value)):
                yield f"argument {argument.name!r} must be a constant: it holds for every call"
        self._declared[resolved.name].append(declared)

    def nearest(self, facet: str, seen_from: Declared) -> dict[str, Expression] | str:
        """Return the implicit arguments of calls of the facet, or why they are ambiguous.

        Those of the own namespace come first, then those of used namespaces, then all others.
        """
        declared = self._declared.get(facet, [])
        near = [d for d in declared if d.namespace == seen_from.namespace]
        near = near or [d for d in declared if d.namespace in seen_from.uses] or declared
        if len(near) > 1:
            choice = " and ".join(declared.name for declared in near)
            return f"the implicit arguments of {facet!r} are ambiguous: {choice} give them"
        nodes = [d.node for d in near if isinstance(d.node, ImplicitDeclaration)]
        return {a.name: a.value for node in nodes for a in node.call.arguments}


class CallLinker:
    def __init__(self, context: LinkContext) -> None:
        self._context = context
        self._report = context.report
        self._implicits = Implicits(context)

    def link(self, node: StepStatement, plan: StatementPlan, where: str) -> None:
        resolved = self._context.resolve(node.call.target)
        if isinstance(resolved, str):
            self._report(where, resolved)
        elif isinstance(resolved.node, SchemaDeclaration):
            self._instance(node.call, plan, resolved.name, where)
        else:
            plan.facet = facet = self._context.plan.facets[resolved.name]
            plan.call_mixins = node.call.mixins
            given = self.given(node.call.arguments, facet.name, facet.params, where)
            for name in sorted(facet.filled.intersection(given)):
                what = f"argument {name!r} of {facet.name!r} is filled by its mixin of that name"
                self._report(where, what)
            given |= self._mixed_in(node.call, facet, given, where)
            nested = self._nested(node.call, plan, facet, given, where)
            given |= self.assumed(facet, {**given, **nested}, where)
            self.check_given(facet, {**given, **nested}, where)
            plan.arguments = (*given.items(), *nested.items())
            plan.own_options = self._own_options(node.call, facet, where)
            self._set_deadline(node.call, plan, where)
            for problem in time_problems(facet.name, given):
                self._context.refuse(where, problem)

    def _set_deadline(self, call: Call, plan: StatementPlan, where: str) -> None:
        plan.deadline = self.deadline(call.mixins, where)
        if plan.deadline is not None:
            self._context.plan.has_deadlines = True

    def deadline(self, mixins: Iterable[Mixin], where: str) -> float | None:
        """Return the seconds of the first deadline among mixins."""
        mixin = next((m for m in mixins if self._is_deadline(m)), None)
        found = None if mixin is None else deadlines.deadline_of(mixin)
        if isinstance(found, str):
            self._context.refuse(where, found)
            return None
        return found

    def _is_deadline(self, mixin: Mixin) -> bool:
        """Whether a mixin is a deadline: a program may declare a facet of that name."""
        return deadlines.is_deadline(mixin) and isinstance(self._context.resolve(mixin.target), str)

    def _own_options(self, call: Call, facet: FacetPlan, where: str) -> EventOptions | None:
        """Return the options that mixins change; those of the call come first."""
        every = (*call.mixins, *facet.node.mixins)
        mixins = [mixin for mixin in every if self._is_option(mixin, facet)]
        if not mixins:
            return None
        refuse = self._context.refuse
        if facet.function is not None:
            for name in dict.fromkeys(mixin.target.rpartition(".")[2] for mixin in mixins):
                what = f"{name} has no effect on {facet.name!r}: a durable function is not tried"
                refuse(where, f"{what} as a whole; give it to the event facets that it calls")
        options = with_mixins(facet.options, mixins, lambda what: refuse(where, what))
        params = [param.name for param in facet.params]
        problems = [*unknown_names(options, params, self._context.did_you_mean)]
        problems += container_keys(options, facet.params, self._context.plan.schemas)
        problems += beyond_numbers(options) if options != facet.options else ()
        for problem in (*problems, *unused_cache(options, has_result=bool(facet.returns))):
            refuse(where, problem)
        return options

    def _is_option(self, mixin: Mixin, facet: FacetPlan | None) -> bool:
        def is_declared(name: str) -> bool:
            return not isinstance(self._context.resolve(name), str)

        params = [param.name for param in facet.params] if facet else []
        return is_option(mixin, is_declared, params)

    def _instance(self, call: Call, plan: StatementPlan, name: str, where: str) -> None:
        """Link a step that is an instance of a schema: its fields are its results."""
        plan.kind = StatementKind.SCHEMA
        plan.schema = SchemaPlan(name, self._context.plan.schemas[name])
        if call.mixins:
            self._report(where, f"{name!r} is a schema, and takes no mixins")
        given = self.given(call.arguments, name, plan.schema.fields, where)
        given |= _defaults(plan.schema.fields, given)
        self.check_given(plan.schema, given, where)
        plan.arguments = tuple(given.items())

    def given(
        self, arguments: Iterable[Argument], target: str, fields: Iterable[Field], where: str
    ) -> _Given:
        """Return the arguments that a call or a mixin names, each of them checked."""
        given = {argument.name: argument.value for argument in arguments}
        for name in repeated(argument.name for argument in arguments):
            self._report(where, f"argument {name!r} is given twice")
        known = {field.name: field for field in fields}
        for name, value in given.items():
            if name not in known:
                hint = self._context.did_you_mean(name, known)
                self._report(where, f"{target!r} has no parameter {name!r}{hint}")
            elif why := self.literal_misfit(known[name], value):
                self._report(where, f"argument {name!r} of {target!r}: {why}")
        return given

    def _mixed_in(self, call: Call, facet: FacetPlan, given: _Given, where: str) -> _Given:
        """Return the arguments from mixins without an alias, as far as the facet has them."""
        params = {param.name: param for param in facet.params}
        mixins = [mixin for mixin in call.mixins if not mixin.alias]
        plain = [m for m in mixins if not self._is_deadline(m) and not is_built_in(m.target)]
        for mixin in plain:
            self.check_plain_mixin(mixin, facet, where)
        mixed = {a.name: a.value for mixin in reversed(plain) for a in mixin.arguments}
        open_ = params.keys() - given.keys() - facet.filled
        filled = {name: value for name, value in mixed.items() if name in open_}
        for name, value in filled.items():
            if why := self.literal_misfit(params[name], value):
                self._context.refuse(where, f"argument {name!r} of {facet.name!r}: {why}")
        return filled

    def check_plain_mixin(self, mixin: Mixin, facet: FacetPlan | None, where: str) -> None:
        """Check the arguments of a mixin without an alias, of a call of the facet or a signature.

        It need not be declared. Then its arguments are those of the called facet.
        """
        if self._context.is_stored or self._is_option(mixin, facet):
            return
        resolved = self._context.resolve(mixin.target)
        if isinstance(resolved, str):
            if "ambiguous" in resolved:
                self._report(where, resolved)
            elif facet is not None:
                self._check_names(mixin, facet, where)
        elif target := self.mixin_target(mixin, where):
            self.given(mixin.arguments, target.name, target.params, where)

    def _check_names(self, mixin: Mixin, facet: FacetPlan, where: str) -> None:
        known = [param.name for param in facet.params]
        for name in repeated(argument.name for argument in mixin.arguments):
            self._report(where, f"argument {name!r} is given twice")
        for argument in mixin.arguments:
            if argument.name not in known:
                hint = self._context.did_you_mean(argument.name, known)
                what = f"{facet.name!r} has no parameter {argument.name!r}{hint}"
                self._report(where, f"{what}, and its mixin {mixin.target!r} is not declared")

    def assumed(self, facet: FacetPlan, given: Mapping[str, Expression], where: str) -> _Given:
        """Return the arguments from implicit declarations and defaults."""
        implicit = self._implicits.nearest(facet.name, self._context.declared)
        if isinstance(implicit, str):
            self._report(where, implicit)
            implicit = {}
        taken = {*given, *facet.filled}
        assumed = {name: value for name, value in implicit.items() if name not in taken}
        return assumed | _defaults(facet.params, {*taken, *assumed})

    def check_given(
        self, called: FacetPlan | SchemaPlan, given: Mapping[str, Expression], where: str
    ) -> None:
        fields = called.params if isinstance(called, FacetPlan) else called.fields
        filled = called.filled if isinstance(called, FacetPlan) else ()
        for field in fields:
            if field.name not in given and field.name not in filled:
                self._report(where, f"{called.name!r} needs an argument {field.name!r}")

    # --- mixins with an alias ---

    def _nested(
        self, call: Call, plan: StatementPlan, facet: FacetPlan, explicit: _Given, where: str
    ) -> dict[str, MapLiteral]:
        """Return the arguments of mixins with an alias: one map below each alias.

        It fills the parameter of that name, if the facet has one; else it is an addition.
        """
        params = {param.name: param for param in facet.params}
        nested: dict[str, MapLiteral] = {}
        for mixin in call.mixins:
            if not mixin.alias:
                continue
            if mixin.alias in {*nested, *explicit}:
                self._report(where, f"the name {mixin.alias!r} of a mixin is taken already")
            target = self.mixin_target(mixin, where)
            given: _Given = {}
            if target is not None:
                given = self.given(mixin.arguments, target.name, target.params, where)
            nested[mixin.alias] = MapLiteral(tuple(given.items()))
            param = None if mixin.alias in facet.filled else params.get(mixin.alias)
            if param and (why := self.literal_misfit(param, nested[mixin.alias])):
                self._report(where, f"argument {param.name!r} of {facet.name!r}: {why}")
        plan.call_aliases = tuple(name for name in nested if name not in params)
        for run in facet.mixins:
            given_names = dict(nested[run.alias].entries) if run.alias in nested else {}
            for name in (name for name in run.missing if name not in given_names):
                self._report(where, f"mixin {run.alias!r} of {facet.name!r} needs {name!r}")
        return nested

    def signature(self, facet: FacetPlan, where: str) -> tuple[Mixin, ...]:
        """Return the mixins of a signature that are run, with their names checked."""
        run = tuple(mixin for mixin in facet.node.mixins if mixin.alias)
        for name in repeated(mixin.alias for mixin in run):
            self._report(where, f"the name {name!r} of a mixin is taken already")
        return run

    def mixin_target(self, mixin: Mixin, where: str) -> FacetPlan | None:
        resolved = self._context.resolve(mixin.target)
        if isinstance(resolved, str):
            self._report(where, resolved)
            return None
        if resolved.name not in self._context.plan.facets:
            self._report(where, f"the mixin {mixin.target!r} is a schema, not a facet")
            return None
        return self._context.plan.facets[resolved.name]

    def literal_misfit(self, param: Field, value: Expression) -> str:
        if any(True for _ in references(value)):
            return ""
        try:
            constant, context = evaluate(value, Constants()), self._context
            return field_misfit(param, constant, context.plan.schemas, context.checks)
        except EvaluationError:
            return ""  # it fails the step at run time, like any argument without a value


def _defaults(fields: Iterable[Field], given: Container[str]) -> _Given:
    return {f.name: f.default for f in fields if f.default is not None and f.name not in given}
