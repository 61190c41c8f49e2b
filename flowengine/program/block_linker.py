"""Link bodies: blocks, their statements and what they yield."""

from __future__ import annotations

from dataclasses import replace

from flowengine.program.call_linker import CallLinker
from flowengine.program.checks import yielded_attributes
from flowengine.program.dependencies import repeated
from flowengine.program.nodes import (
    ArrayLiteral,
    ArrayType,
    AssertStatement,
    Block,
    CatchClause,
    LogStatement,
    Statement,
    StepStatement,
    WhenCase,
    YieldStatement,
)
from flowengine.program.plan import (
    BlockPlan,
    BodyPlan,
    ChoicePlan,
    FacetPlan,
    ForeachPlan,
    Reach,
    RowKind,
    Sources,
    StatementKind,
    StatementPlan,
    StepSource,
    YieldPlan,
)
from flowengine.program.scopes import Frame
from flowengine.program.scripts import SCRIPT, script_facet, script_statement

#: What separates the parts of a path: in a name they would make two paths one.
_PATH_MARKS = frozenset("./[]")


class BlockLinker(CallLinker):
    """Links blocks."""

    def _body(
        self,
        blocks: tuple[Block, ...],
        container: Frame,
        address: str,
        where: str,
        *,
        role: str = "",
    ) -> BodyPlan | None:
        """Link blocks that stand side by side: a body, or an always block."""
        if not blocks:
            return None
        around = f"[{role}]" if role else ""
        plans = []
        for index, node in enumerate(blocks):
            kind = "foreach" if node.foreach else "when" if node.cases else "block"
            segment = around if len(blocks) == 1 else f"{around}.{kind}-{index}"
            plan = BlockPlan(f"{address}/{role}{index}", index, segment)
            plans.append(self._outline(node, plan, where))
        for index, (node, plan) in enumerate(zip(blocks, plans, strict=True)):
            place = where if len(blocks) == 1 else f"{where}, block {index}"
            site = Frame(
                plan.kind,
                container,
                plan.segment,
                plan,
                tuple(plans[:index]),
                tuple(plans[index + 1 :]),
                role=role,
            )
            self._block(node, plan, site, place)
        return BodyPlan(tuple(plans))

    def _catch(
        self, clause: CatchClause, container: Frame, address: str, segment: str, where: str
    ) -> BlockPlan:
        """Link a catch: a block that reads the error of its step."""
        node = Block(
            clause.statements,
            clause.yields,
            cases=clause.cases,
            first_match=clause.first_match,
        )
        where = f"{where}, catch"
        plan = self._outline(node, BlockPlan(f"{address}/catch", 0, segment), where)
        if plan.choice:
            plan.choice.is_optional = True
        self._block(node, plan, Frame(plan.kind, container, segment, plan, role="catch"), where)
        return plan

    def _outline(self, node: Block | WhenCase, plan: BlockPlan, where: str) -> BlockPlan:
        """Name the statements but do not link them yet: siblings may refer to them."""
        self.plan.blocks[plan.address] = plan
        statements = []
        spoken: dict[str, int] = {}
        for position, statement in enumerate(node.statements):
            if isinstance(statement, StepStatement):
                name, row = statement.name, StatementKind.CALL
                if name in plan.by_name:
                    self._problem(where, f"the step name {name!r} is used twice in a block")
                if set(name) & _PATH_MARKS:
                    self._problem(where, f"the step name {name!r} may not hold any of . / [ ]")
            else:
                is_log = isinstance(statement, LogStatement)
                row = StatementKind.LOG if is_log else StatementKind.ASSERT
                word = "sys.log" if is_log else "sys.assert"
                spoken[word] = spoken.get(word, 0) + 1
                name = word if spoken[word] == 1 else f"{word}_{spoken[word]}"
            outlined = StatementPlan(f"{plan.address}/{name}", position, name, row, plan)
            if isinstance(statement, StepStatement):
                outlined.own_yields = yielded_attributes(statement.body, statement.catch)
            self.plan.statements[outlined.address] = plan.by_name[name] = outlined
            statements.append(outlined)
        plan.statements = tuple(statements)
        if isinstance(node, Block):
            self._outline_parts(node, plan, where)
        return plan

    def _outline_parts(self, node: Block, plan: BlockPlan, where: str) -> None:
        if node.foreach:
            clause = node.foreach
            plan.foreach = ForeachPlan(
                clause.variable, clause.iterable, Sources(), clause.limit, clause.collect_errors
            )
        if node.script:
            plan.is_script = True
            facet = self._script_facet()
            statement = script_statement(node.script, facet, plan, plan.address, hops=1)
            self.plan.statements[statement.address] = statement
            plan.statements = (statement,)
        if not node.cases:
            return
        cases = []
        for index, case in enumerate(node.cases):
            name = "default" if case.condition is None else f"case-{index}"
            inner = BlockPlan(f"{plan.address}/{name}", index, f"{plan.segment}[{name}]", when=plan)
            cases.append(self._outline(case, inner, f"{where}, {name}"))
        conditions = tuple(case.condition for case in node.cases)
        plan.choice = ChoicePlan(conditions, tuple(cases), node.first_match, is_optional=False)

    def _script_facet(self) -> FacetPlan:
        """The facet that runs scripts: part of a program only when it has some."""
        return self.plan.facets.setdefault(SCRIPT, script_facet())

    def _block(self, node: Block, plan: BlockPlan, site: Frame, where: str) -> None:
        """Link a block whose row stands at that site."""
        if plan.foreach:
            self._foreach(plan.foreach, site, where)
            frame = Frame(
                RowKind.ITEM,
                site,
                "[]",
                plan,
                site.earlier,
                site.later,
                variable=plan.foreach.variable,
            )
            self._contents(node, plan, frame, where)
        elif plan.is_script:
            self._waits[plan] = {statement: set() for statement in plan.statements}
        elif plan.choice:
            self._choice(node, plan.choice, site, where)
        else:
            self._contents(node, plan, site, where)

    def _foreach(self, foreach: ForeachPlan, fan: Frame, where: str) -> None:
        # Siblings are looked up from a block's own frame: a bare one stands in for it.
        site = replace(fan, kind=RowKind.BLOCK, block=BlockPlan("", 0, ""))
        values = [foreach.iterable, *([foreach.limit] if foreach.limit is not None else [])]
        found = self._read(values, site, foreach.sources, f"{where}, foreach", lift=1)
        needs = self._draw(found, site, Reach.NEEDS, RowKind.FAN, "", None)
        # Drawn from the block's frame, but read from the container's row.
        foreach.needs = tuple(StepSource(s.hops - 1, s.suffix) for s in needs)

    def _choice(self, node: Block, choice: ChoicePlan, site: Frame, where: str) -> None:
        conditions = [condition for condition in choice.conditions if condition is not None]
        found = self._read(conditions, site, choice.sources, f"{where}, when")
        needs = self._draw(found, site, Reach.NEEDS, RowKind.WHEN, "", None)
        # It is looked at before the block has a row, so from the container's row.
        choice.needs = tuple(StepSource(s.hops - 1, s.suffix) for s in needs)
        for case, plan in zip(node.cases, choice.cases, strict=True):
            tail = plan.segment.removeprefix(site.tail)
            frame = Frame(RowKind.CASE, site, tail, plan)
            self._contents(case, plan, frame, f"{where}, {tail.strip('[]')}")

    def _contents(self, node: Block | WhenCase, plan: BlockPlan, frame: Frame, where: str) -> None:
        """Link the statements and yields of a block, of an item or of a case."""
        self._waits[plan] = {statement: set() for statement in plan.statements}
        # All calls first: an expression may name a step that stands further down.
        for statement, outlined in zip(node.statements, plan.statements, strict=True):
            if isinstance(statement, StepStatement):
                self._call(statement, outlined, f"{where}, step {outlined.name!r}")
        for statement, outlined in zip(node.statements, plan.statements, strict=True):
            self._statement(statement, outlined, frame, where)
        plan.yields = tuple(
            y for y in (self._yield(y, frame, where) for y in node.yields) if y is not None
        )
        values = [value for y in plan.yields for _, value in y.attributes]
        found = self._read(values, frame, plan.yield_sources, f"{where}, yield")
        outside = [step for step in found if step.owner is not frame]
        plan.captures = self._draw(outside, frame, Reach.CAPTURES, frame.kind, "", None)

    # --- statements and yields ---

    def _statement(self, node: Statement, plan: StatementPlan, frame: Frame, where: str) -> None:
        here = f"{where}, step {plan.name!r}"
        if isinstance(node, LogStatement):
            plan.arguments = tuple((a.name, a.value) for a in node.arguments)
        elif isinstance(node, AssertStatement):
            plan.condition = node.condition
        values = [value for _, value in plan.arguments]
        values += [plan.condition] if plan.condition is not None else []
        found = self._read(values, frame, plan.sources, here)
        plan.needs = self._draw(found, frame, Reach.NEEDS, RowKind.STEP, f".{plan.name}", plan)
        if not isinstance(node, StepStatement) or not (node.body or node.catch or node.always):
            return
        inner = Frame(RowKind.STEP, frame, f".{plan.name}", facet=plan.facet, statement=plan)
        plan.inline_body = self._body(node.body, inner, plan.address, here)
        if node.catch:
            # The facet's own catch comes first, and has that name already.
            second = plan.facet is not None and plan.facet.node.catch is not None
            segment = "[catch-2]" if second else "[catch]"
            plan.own_catch = self._catch(node.catch, inner, plan.address, segment, here)
        plan.always = (
            self._body(node.always, inner, plan.address, f"{here}, always", role="always")
            if node.always
            else None
        )

    def _yield(self, node: YieldStatement, frame: Frame, where: str) -> YieldPlan | None:
        target, levels = node.call.target, -1
        crossed: list[Frame] = []
        for _, outer in frame.outwards():
            if outer.kind is RowKind.STEP:
                levels += 1
                found = _yielded_to(target, outer)
                if found is not None:
                    break
            crossed.append(outer)
            if outer.role == "always":
                self._problem(where, "an always block yields nothing: its step has its results")
                return None
        else:
            self._problem(
                where, f"yields to {target!r}, which is neither an enclosing facet nor its mixin"
            )
            return None
        for name in repeated(argument.name for argument in node.call.arguments):
            self._problem(where, f"yields {name!r} twice in one yield")
        for argument in node.call.arguments:
            if "." in argument.name:
                self._problem(where, f"the yielded name {argument.name!r} may not hold a dot")
        attributes = tuple((found + a.name, a.value) for a in node.call.arguments)
        declared = outer.facet.returns if outer.facet and not found else ()
        listed = {f.name for f in declared if isinstance(f.type, ArrayType)}
        inside = 0  # how many steps lie between the yield and the foreach we look at
        for between in crossed:
            if between.statement is not None:
                between.statement.carries = True
                inside += 1
            elif between.kind is RowKind.ITEM and between.block and between.block.foreach:
                between.block.foreach.empty_lists += [
                    (levels - inside, name)
                    for name, value in attributes
                    if name in listed or isinstance(value, ArrayLiteral)
                ]
        return YieldPlan(levels, attributes)


def _yielded_to(target: str, frame: Frame) -> str | None:
    """Say what comes before the names that are yielded to this step; None: not to this one."""
    facet = frame.facet
    if facet is None:
        return None
    if target in (facet.name, facet.short_name):
        return ""
    if target in frame.aliases:
        return f"{target}."
    of_target = [m.alias for m in facet.mixins if target in _names_of(m.statement.facet)]
    return f"{of_target[0]}." if len(of_target) == 1 else None


def _names_of(facet: FacetPlan | None) -> tuple[str, ...]:
    return (facet.name, facet.short_name) if facet else ()
