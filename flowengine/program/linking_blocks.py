"""Link bodies: blocks, their statements and what they yield."""

from __future__ import annotations

from flowengine.program.calls import CallLinker
from flowengine.program.checks import yielded_attributes
from flowengine.program.nodes import (
    ArrayLiteral,
    ArrayType,
    AssertStatement,
    Block,
    LogStatement,
    Statement,
    StepStatement,
    YieldStatement,
)
from flowengine.program.plan import (
    BlockPlan,
    BodyPlan,
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
from flowengine.program.wiring import repeated

#: What separates the parts of a path: in a name they would make two paths one.
_PATH_MARKS = frozenset("./[]")


class BlockLinker(CallLinker):
    """Links blocks."""

    def _body(
        self, blocks: tuple[Block, ...], container: Frame, address: str, where: str
    ) -> BodyPlan | None:
        if not blocks:
            return None
        plans = [
            self._outline(node, index, len(blocks) == 1, f"{address}/{index}", where)
            for index, node in enumerate(blocks)
        ]
        for index, (node, plan) in enumerate(zip(blocks, plans, strict=True)):
            place = where if len(blocks) == 1 else f"{where}, block {index}"
            around = (tuple(plans[:index]), tuple(plans[index + 1 :]))
            self._block(node, plan, container, around, place)
        return BodyPlan(tuple(plans))

    def _outline(
        self, node: Block, index: int, single: bool, address: str, where: str
    ) -> BlockPlan:
        """A block with its statements named but not yet linked: siblings may refer to them."""
        kind = "foreach" if node.foreach else "block"
        plan = BlockPlan(address, index, "" if single else f".{kind}-{index}")
        self.plan.blocks[address] = plan
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
            outlined = StatementPlan(f"{address}/{name}", position, name, row, plan)
            if isinstance(statement, StepStatement):
                outlined.own_yields = yielded_attributes(statement.body)
            self.plan.statements[outlined.address] = plan.by_name[name] = outlined
            statements.append(outlined)
        plan.statements = tuple(statements)
        return plan

    def _block(
        self,
        node: Block,
        plan: BlockPlan,
        container: Frame,
        around: tuple[tuple[BlockPlan, ...], tuple[BlockPlan, ...]],
        where: str,
    ) -> None:
        self._waits[plan] = {statement: set() for statement in plan.statements}
        earlier, later = around
        if node.foreach:
            clause, sources = node.foreach, Sources()
            plan.foreach = ForeachPlan(clause.variable, clause.iterable, sources)
            fan = Frame(RowKind.FAN, container, plan.segment, plan, earlier, later)
            # Siblings are looked up from a block's own frame: a bare one stands in for it.
            site = Frame(
                RowKind.BLOCK, container, plan.segment, BlockPlan("", 0, ""), earlier, later
            )
            found = self._read([clause.iterable], site, sources, f"{where}, foreach", lift=1)
            needs = self._draw(found, site, Reach.NEEDS, RowKind.FAN, "", None)
            # Drawn from the block's frame, but read from the container's row.
            plan.foreach.needs = tuple(StepSource(s.hops - 1, s.suffix) for s in needs)
            frame = Frame(RowKind.ITEM, fan, "[]", plan, earlier, later, variable=clause.variable)
        else:
            frame = Frame(RowKind.BLOCK, container, plan.segment, plan, earlier, later)
        # All calls first: an expression may name a step that stands further down.
        for statement, outlined in zip(node.statements, plan.statements, strict=True):
            if isinstance(statement, StepStatement):
                self._call(statement, outlined, f"{where}, step {outlined.name!r}")
        for statement, outlined in zip(node.statements, plan.statements, strict=True):
            self._statement(statement, outlined, frame, where)
        plan.yields = tuple(
            y for y in (self._yield(y, frame, plan, where) for y in node.yields) if y is not None
        )
        values = [value for y in plan.yields for _, value in y.attributes]
        found = self._read(values, frame, plan.yield_sources, f"{where}, yield")
        outside = [step for step in found if step.owner is not frame]
        plan.captures = self._draw(outside, frame, Reach.CAPTURES, frame.kind, "", None)

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
        if isinstance(node, StepStatement) and node.body:
            inner = Frame(RowKind.STEP, frame, f".{plan.name}", facet=plan.facet, statement=plan)
            plan.inline_body = self._body(node.body, inner, plan.address, here)

    def _yield(
        self, node: YieldStatement, frame: Frame, plan: BlockPlan, where: str
    ) -> YieldPlan | None:
        target, levels = node.call.target, -1
        crossed: list[Frame] = []
        for _, outer in frame.outwards():
            if outer.kind is RowKind.STEP and outer.facet:
                levels += 1
                if target in (outer.facet.name, outer.facet.short_name):
                    break
            crossed.append(outer)
        else:
            self._problem(
                where, f"yields to {target!r}, which is neither an enclosing facet nor its mixin"
            )
            return None
        for name in repeated(argument.name for argument in node.call.arguments):
            self._problem(where, f"yields {name!r} twice in one yield")
        attributes = tuple((a.name, a.value) for a in node.call.arguments)
        listed = {f.name for f in outer.facet.returns if isinstance(f.type, ArrayType)}
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
