"""Link yields: the step that each goes to, and the attributes that it gives."""

from __future__ import annotations

from flowengine.program import nodes
from flowengine.program.addresses import RowKind
from flowengine.program.call_linker import CallLinker
from flowengine.program.link_context import LinkContext, repeated
from flowengine.program.plan import FacetPlan, YieldPlan
from flowengine.program.scopes import Frame


class YieldLinker:
    def __init__(self, context: LinkContext, calls: CallLinker) -> None:
        self._context, self._calls = context, calls
        self._report = context.report

    def link(self, node: nodes.YieldStatement, frame: Frame, where: str) -> YieldPlan | None:
        target, levels = node.call.target, -1
        crossed: list[Frame] = []
        for _, outer in frame.outwards():
            if outer.kind is RowKind.STEP:
                levels += 1
                prefix = _yield_prefix(target, outer)
                if prefix is not None:
                    break
            crossed.append(outer)
            if outer.role == "always":
                self._report(where, "an always block yields nothing: its step has its results")
                return None
        else:
            self._report(where, f"yields to {target!r}, {_why_not(target, frame)}")
            return None
        for name in repeated(argument.name for argument in node.call.arguments):
            self._report(where, f"yields {name!r} twice in one yield")
        for argument in node.call.arguments:
            if "." in argument.name:
                self._report(where, f"the yielded name {argument.name!r} may not hold a dot")
        self._check_attributes(node.call, outer, prefix, where)
        attributes = tuple((prefix + a.name, a.value) for a in node.call.arguments)
        declared = outer.facet.returns if outer.facet and not prefix else ()
        listed = {f.name for f in declared if isinstance(f.type, nodes.ArrayType)}
        inside = 0  # steps between the yield and the foreach
        for between in crossed:
            if between.statement is not None:
                between.statement.carries = True
                inside += 1
            elif between.kind is RowKind.ITEM and between.block and between.block.foreach:
                between.block.foreach.empty_lists += [
                    (levels - inside, name)
                    for name, value in attributes
                    if name in listed or isinstance(value, nodes.ArrayLiteral)
                ]
        return YieldPlan(levels, attributes)

    def _check_attributes(self, call: nodes.Call, outer: Frame, prefix: str, where: str) -> None:
        """Check yielded names and literals against the returns that the facet declares."""
        facet = outer.facet
        if prefix and facet:
            mixed = {mixin.alias: mixin.statement.facet for mixin in facet.mixins}
            facet = mixed.get(prefix.removesuffix("."))
        if facet is None:
            return
        returns = {field.name: field for field in facet.returns}
        for argument in call.arguments:
            field = returns.get(argument.name)
            if field is None:
                declared = ", ".join(returns) or "nothing"
                hint = self._context.did_you_mean(argument.name, list(returns))
                what = f"which does not return {argument.name!r} but {declared}{hint}"
                self._context.refuse(where, f"yields to {call.target!r}, {what}")
            elif why := self._calls.literal_misfit(field, argument.value):
                what = f"return {argument.name!r}: {why}"
                self._context.refuse(where, f"yields to {call.target!r}, {what}")


def _yield_prefix(target: str, frame: Frame) -> str | None:
    """Return the prefix of attributes yielded to this step; None: the yield is not to it."""
    facet = frame.facet
    if facet is None:
        return None
    if target in (facet.name, facet.short_name):
        return ""
    if target in frame.aliases:
        return f"{target}."
    of_target = [m.alias for m in facet.mixins if target in _names_of(m.statement.facet)]
    return f"{of_target[0]}." if len(of_target) == 1 else None


def _why_not(target: str, frame: Frame) -> str:
    """Return the reason why a yield cannot go to that target."""
    for _, outer in frame.outwards():
        of_signature = outer.facet.node.mixins if outer.facet else ()
        of_call = outer.statement.call_mixins if outer.statement else ()
        if any(mixin.alias == target for mixin in of_call):
            return "a mixin that fills the parameter of its name, which has no results of its own"
        mixed = [m for m in (*of_signature, *of_call) if _is_named(m.target, target)]
        aliases = [mixin.alias for mixin in mixed if mixin.alias]
        if len(aliases) == 1:
            return f"a mixin with the alias {aliases[0]!r}; yield to {aliases[0]!r}"
        if aliases:
            choice = " and ".join(aliases)
            return f"which is mixed in several times, as {choice}; yield to one of these"
        if mixed:
            return (
                "a mixin without an alias, which has no results of its own; write "
                f"`with {mixed[0].target}(…) as name` and yield to that name"
            )
    return "which is neither an enclosing facet nor its mixin"


def _is_named(name: str, target: str) -> bool:
    return target in (name, name.rpartition(".")[2])


def _names_of(facet: FacetPlan | None) -> tuple[str, ...]:
    return (facet.name, facet.short_name) if facet else ()
