"""Link bodies: blocks and their statements."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from flowengine.program import nodes
from flowengine.program.addresses import RowKind, Sources, StepSource
from flowengine.program.call_linker import CallLinker
from flowengine.program.checks import yielded_attributes
from flowengine.program.dependencies import DependencyLinker
from flowengine.program.link_context import LinkContext
from flowengine.program.plan import (
    BlockPlan,
    Body,
    ChoicePlan,
    EdgeKind,
    ForeachPlan,
    StatementKind,
    StatementPlan,
)
from flowengine.program.scopes import Frame, ResolvedStep
from flowengine.program.yield_linker import YieldLinker

#: They separate the parts of a path: in a step name they would give two rows one path.
_PATH_MARKS = frozenset("./[]")


class BlockLinker:
    def __init__(
        self, context: LinkContext, calls: CallLinker, dependencies: DependencyLinker
    ) -> None:
        self._context, self._calls, self._dependencies = context, calls, dependencies
        self._yields = YieldLinker(context, calls)
        self._report = context.report

    def body(
        self,
        blocks: tuple[nodes.Block, ...],
        container: Frame,
        address: str,
        where: str,
        *,
        role: str = "",
    ) -> Body:
        """Link blocks that stand side by side: a body, or an always block."""
        around = f"[{role}]" if role else ""
        plans = []
        for index, node in enumerate(blocks):
            kind = "foreach" if node.foreach else "when" if node.cases else "block"
            segment = around if len(blocks) == 1 else f"{around}.{kind}-{index}"
            plan = BlockPlan(f"{address}/{role}{index}", index, segment)
            plans.append(self._outline(node, plan, where))
        for index, (node, plan) in enumerate(zip(blocks, plans, strict=True)):
            place = where if len(blocks) == 1 else f"{where}, block {index}"
            earlier, later = tuple(plans[:index]), tuple(plans[index + 1 :])
            site = Frame(plan.kind, container, plan.segment, plan, earlier, later, role=role)
            self._block(node, plan, site, place)
        return tuple(plans)

    def catch(
        self, clause: nodes.CatchClause, container: Frame, address: str, segment: str, where: str
    ) -> BlockPlan:
        """Link a catch: a block that reads the error of its step."""
        node = nodes.Block(
            clause.statements, clause.yields, cases=clause.cases, first_match=clause.first_match
        )
        where = f"{where}, catch"
        plan = self._outline(node, BlockPlan(f"{address}/catch", 0, segment), where)
        if plan.choice:
            plan.choice.is_optional = True
        self._block(node, plan, Frame(plan.kind, container, segment, plan, role="catch"), where)
        return plan

    def _block(self, node: nodes.Block, plan: BlockPlan, site: Frame, where: str) -> None:
        """Link a block whose row stands at that site."""
        if plan.foreach:
            self._foreach(plan.foreach, site, where)
            name = plan.foreach.variable
            item = Frame(RowKind.ITEM, site, "[]", plan, site.earlier, site.later, variable=name)
            self._contents(node, plan, item, where)
        elif plan.is_script:
            self._context.waits[plan] = {statement: set() for statement in plan.statements}
        elif plan.choice:
            self._choice(node, plan.choice, site, where)
        else:
            self._contents(node, plan, site, where)

    def _foreach(self, foreach: ForeachPlan, fan: Frame, where: str) -> None:
        # Siblings are resolved from a block's own frame: an empty one takes its place.
        site = replace(fan, kind=RowKind.BLOCK, block=BlockPlan("", 0, ""))
        values = [foreach.iterable, *([foreach.limit] if foreach.limit is not None else [])]
        where = f"{where}, foreach"
        steps = self._dependencies.resolve(values, site, foreach.sources, where, lift=1)
        needs = self._dependencies.add_edges(steps, site, EdgeKind.NEEDS, RowKind.FAN)
        # Resolved from the block's frame, but read from the container's row.
        foreach.needs = tuple(StepSource(s.hops - 1, s.suffix) for s in needs)

    def _choice(self, node: nodes.Block, choice: ChoicePlan, site: Frame, where: str) -> None:
        conditions = [condition for condition in choice.conditions if condition is not None]
        steps = self._dependencies.resolve(conditions, site, choice.sources, f"{where}, when")
        needs = self._dependencies.add_edges(steps, site, EdgeKind.NEEDS, RowKind.WHEN)
        # Read before the block has a row, so from the container's row.
        choice.needs = tuple(StepSource(s.hops - 1, s.suffix) for s in needs)
        for case, plan in zip(node.cases, choice.cases, strict=True):
            tail = plan.segment.removeprefix(site.tail)
            frame = Frame(RowKind.CASE, site, tail, plan)
            self._contents(case, plan, frame, f"{where}, {tail.strip('[]')}")

    def _contents(
        self, node: nodes.Block | nodes.WhenCase, plan: BlockPlan, frame: Frame, where: str
    ) -> None:
        """Link the statements and yields of a block, of an item or of a case."""
        self._context.waits[plan] = {statement: set() for statement in plan.statements}
        # All calls first: an expression may name a step that stands further down.
        for statement, outlined in zip(node.statements, plan.statements, strict=True):
            if isinstance(statement, nodes.StepStatement):
                self._calls.link(statement, outlined, f"{where}, step {outlined.name!r}")
        for statement, outlined in zip(node.statements, plan.statements, strict=True):
            self._statement(statement, outlined, frame, where)
        yields = [self._yields.link(y, frame, where) for y in node.yields]
        plan.yields = tuple(y for y in yields if y is not None)
        values = [value for y in plan.yields for _, value in y.attributes]
        steps = self._dependencies.resolve(values, frame, plan.yield_sources, f"{where}, yield")
        outside = [step for step in steps if step.owner is not frame]
        plan.captures = self._dependencies.add_edges(outside, frame, EdgeKind.CAPTURES, frame.kind)

    # --- the outline: statements and cases by name, before anything is linked ---

    def _outline(
        self, node: nodes.Block | nodes.WhenCase, plan: BlockPlan, where: str
    ) -> BlockPlan:
        """Name the statements of a block but do not link them yet: siblings may refer to them."""
        self._context.plan.blocks[plan.address] = plan
        statements = []
        counts: Counter[str] = Counter()
        for position, statement in enumerate(node.statements):
            if isinstance(statement, nodes.StepStatement):
                name, row = statement.name, StatementKind.CALL
                if name in plan.by_name:
                    self._report(where, f"the step name {name!r} is used twice in a block")
                if set(name) & _PATH_MARKS:
                    self._report(where, f"the step name {name!r} may not hold any of . / [ ]")
            else:
                is_log = isinstance(statement, nodes.LogStatement)
                row = StatementKind.LOG if is_log else StatementKind.ASSERT
                word = "sys.log" if is_log else "sys.assert"
                counts[word] += 1
                name = word if counts[word] == 1 else f"{word}_{counts[word]}"
            outlined = StatementPlan(f"{plan.address}/{name}", position, name, row, plan)
            if isinstance(statement, nodes.StepStatement):
                outlined.own_yields = yielded_attributes(statement.body, statement.catch)
            self._context.plan.statements[outlined.address] = plan.by_name[name] = outlined
            statements.append(outlined)
        plan.statements = tuple(statements)
        if isinstance(node, nodes.Block):
            self._add_parts(node, plan, where)
        return plan

    def _add_parts(self, node: nodes.Block, plan: BlockPlan, where: str) -> None:
        if node.foreach:
            clause = node.foreach
            plan.foreach = ForeachPlan(
                clause.variable, clause.iterable, Sources(), clause.limit, clause.collect_errors
            )
        if node.script:
            plan.is_script = True
            plan.statements = (self._context.add_script(node.script, plan, plan.address, hops=1),)
        if not node.cases:
            return
        cases = []
        for index, case in enumerate(node.cases):
            name = "default" if case.condition is None else f"case-{index}"
            inner = BlockPlan(f"{plan.address}/{name}", index, f"{plan.segment}[{name}]", when=plan)
            cases.append(self._outline(case, inner, f"{where}, {name}"))
        conditions = tuple(case.condition for case in node.cases)
        plan.choice = ChoicePlan(conditions, tuple(cases), node.first_match, is_optional=False)

    # --- statements and yields ---

    def _statement(
        self, node: nodes.Statement, plan: StatementPlan, frame: Frame, where: str
    ) -> None:
        here = f"{where}, step {plan.name!r}"
        if isinstance(node, nodes.LogStatement):
            plan.arguments = tuple((a.name, a.value) for a in node.arguments)
        elif isinstance(node, nodes.AssertStatement):
            plan.condition = node.condition
        values = [value for _, value in plan.arguments]
        values += [plan.condition] if plan.condition is not None else []
        steps = self._dependencies.resolve(values, frame, plan.sources, here)
        if not self._context.is_stored:  # arguments of mixins that the facet does not take, too
            ignored = [a.value for mixin in plan.call_mixins for a in mixin.arguments]
            self._dependencies.resolve(ignored, frame, Sources(), here)
        awaited: list[ResolvedStep] = []
        if isinstance(node, nodes.StepStatement) and node.after:
            awaited = self._dependencies.order(node.after, steps, frame, here)
        place = (RowKind.STEP, f".{plan.name}", plan)
        plan.needs = self._dependencies.add_edges(steps, frame, EdgeKind.NEEDS, *place)
        plan.awaits = self._dependencies.add_edges(awaited, frame, EdgeKind.AWAITS, *place)
        if not isinstance(node, nodes.StepStatement) or not (
            node.body or node.catch or node.always
        ):
            return
        inner = Frame(RowKind.STEP, frame, f".{plan.name}", facet=plan.facet, statement=plan)
        plan.inline_body = self.body(node.body, inner, plan.address, here)
        if node.catch:
            # The facet's own catch comes first, and has that name already.
            second = plan.facet is not None and plan.facet.node.catch is not None
            segment = "[catch-2]" if second else "[catch]"
            plan.own_catch = self.catch(node.catch, inner, plan.address, segment, here)
        where = f"{here}, always"
        plan.always = self.body(node.always, inner, plan.address, where, role="always")
