"""The outline of blocks: their statements and cases by name, before anything is linked."""

from __future__ import annotations

from collections import Counter

from flowengine.program.addresses import Sources
from flowengine.program.checks import yielded_attributes
from flowengine.program.link_context import LinkContext
from flowengine.program.nodes import Block, LogStatement, StepStatement, WhenCase
from flowengine.program.plan import (
    BlockPlan,
    ChoicePlan,
    ForeachPlan,
    StatementKind,
    StatementPlan,
)

#: They separate the parts of a path: in a step name they would give two rows one path.
_PATH_MARKS = frozenset("./[]")


class BlockOutline:
    """Outlines blocks."""

    def __init__(self, context: LinkContext) -> None:
        self._context = context

    def outline(self, node: Block | WhenCase, plan: BlockPlan, where: str) -> BlockPlan:
        """Name the statements of a block but do not link them yet: siblings may refer to them."""
        self._context.plan.blocks[plan.address] = plan
        statements = []
        counts: Counter[str] = Counter()
        for position, statement in enumerate(node.statements):
            if isinstance(statement, StepStatement):
                name, row = statement.name, StatementKind.CALL
                if name in plan.by_name:
                    self._context.report(where, f"the step name {name!r} is used twice in a block")
                if set(name) & _PATH_MARKS:
                    self._context.report(
                        where, f"the step name {name!r} may not hold any of . / [ ]"
                    )
            else:
                is_log = isinstance(statement, LogStatement)
                row = StatementKind.LOG if is_log else StatementKind.ASSERT
                word = "sys.log" if is_log else "sys.assert"
                counts[word] += 1
                name = word if counts[word] == 1 else f"{word}_{counts[word]}"
            outlined = StatementPlan(f"{plan.address}/{name}", position, name, row, plan)
            if isinstance(statement, StepStatement):
                outlined.own_yields = yielded_attributes(statement.body, statement.catch)
            self._context.plan.statements[outlined.address] = plan.by_name[name] = outlined
            statements.append(outlined)
        plan.statements = tuple(statements)
        if isinstance(node, Block):
            self._add_parts(node, plan, where)
        return plan

    def _add_parts(self, node: Block, plan: BlockPlan, where: str) -> None:
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
            cases.append(self.outline(case, inner, f"{where}, {name}"))
        conditions = tuple(case.condition for case in node.cases)
        plan.choice = ChoicePlan(conditions, tuple(cases), node.first_match, is_optional=False)
