"""Link a program: resolve its names, draw its dependencies, report all its problems.

Three passes: every facet gets a plan, every body gets its blocks and statements, then
every expression is read once to find out where its names come from and who waits for
whom. Whatever is wrong is noted and the linking goes on, so that all problems are
raised together.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowengine.errors import InvalidProgram, Problem
from flowengine.program.checks import (
    call_cycles,
    step_cycles,
    unread_attribute,
    unsupported,
    yielded_attributes,
)
from flowengine.program.expressions import Constants, EvaluationError, evaluate, references
from flowengine.program.names import Declared, Names, did_you_mean
from flowengine.program.nodes import (
    ArrayLiteral,
    ArrayType,
    AssertStatement,
    Block,
    Call,
    Expression,
    FacetDeclaration,
    Field,
    InputRef,
    LogStatement,
    Program,
    Statement,
    StepStatement,
    YieldStatement,
)
from flowengine.program.plan import (
    BlockPlan,
    BodyPlan,
    Edge,
    FacetPlan,
    ForeachPlan,
    Plan,
    Reach,
    RowKind,
    Sources,
    StatementKind,
    StatementPlan,
    StepSource,
    YieldPlan,
)
from flowengine.program.scopes import FoundStep, Frame
from flowengine.program.types import field_misfit

#: What separates the parts of a path: in a name they would make two paths one.
_PATH_MARKS = frozenset("./[]")


def link_program(program: Program) -> Plan:
    """Return the plan of a program, or raise all its problems at once."""
    linker = _Linker(program)
    linker.link()
    if linker.problems:
        raise InvalidProgram(linker.problems)
    return linker.plan


class _Linker:
    def __init__(self, program: Program) -> None:
        self.names = Names.of(program)
        self.plan = Plan()
        self.problems: list[Problem] = list(self.names.problems)
        self._seen_from: Declared
        #: block → statement → statements of that block it waits for, through its body too
        self._waits: dict[BlockPlan, dict[StatementPlan, set[StatementPlan]]] = {}

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

    def _problem(self, where: str, what: str) -> None:
        problem = Problem(where, what)
        if problem not in self.problems:
            self.problems.append(problem)

    # --- facets and bodies ---

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
            for name in _repeated(field.name for field in fields):
                self._problem(facet.name, f"declares the {what} {name!r} twice")
        frame = Frame(RowKind.STEP, None, facet=facet)
        facet.body = self._body(facet.node.body, frame, facet.name, facet.name)

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
        if isinstance(node, StepStatement) and node.body:
            inner = Frame(RowKind.STEP, frame, f".{plan.name}", facet=plan.facet, statement=plan)
            plan.inline_body = self._body(node.body, inner, plan.address, here)

    def _call(self, node: StepStatement, plan: StatementPlan, where: str) -> None:
        resolved = self.names.resolve(node.call.target, self._seen_from)
        if isinstance(resolved, str):
            self._problem(where, resolved)
            return
        if resolved.name not in self.plan.facets:
            self._problem(
                where,
                f"{resolved.name!r} is a schema, and schema instances are not executed by this "
                "version of flowengine",
            )
            return
        plan.facet = facet = self.plan.facets[resolved.name]
        given = self._arguments(node.call, facet, where)
        defaults = [
            (param.name, param.default)
            for param in facet.params
            if param.default is not None and param.name not in given
        ]
        plan.arguments = (*given.items(), *defaults)

    def _arguments(self, call: Call, facet: FacetPlan, where: str) -> dict[str, Expression]:
        given = {argument.name: argument.value for argument in call.arguments}
        for name in _repeated(argument.name for argument in call.arguments):
            self._problem(where, f"argument {name!r} is given twice")
        known = {param.name: param for param in facet.params}
        for name, value in given.items():
            if name not in known:
                hint = did_you_mean(name, list(known))
                self._problem(where, f"{facet.name!r} has no parameter {name!r}{hint}")
            elif why := self._literal_misfit(known[name], value):
                self._problem(where, f"argument {name!r} of {facet.name!r}: {why}")
        for name, param in known.items():
            if name not in given and param.default is None:
                self._problem(where, f"{facet.name!r} needs an argument {name!r}")
        return given

    def _literal_misfit(self, param: Field, value: Expression) -> str:
        if any(True for _ in references(value)):
            return ""
        try:
            return field_misfit(param, evaluate(value, Constants()))
        except EvaluationError:
            return ""  # fails the step at run time, like any argument without a value

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
        for name in _repeated(argument.name for argument in node.call.arguments):
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

    # --- references ---

    def _read(
        self,
        values: Iterable[Expression],
        frame: Frame,
        sources: Sources,
        where: str,
        *,
        lift: int = 0,
    ) -> list[FoundStep]:
        """Note where every name comes from; return the steps among them.

        ``lift`` is how far the scope row lies outside the frame that names are looked up in.
        """
        found: dict[str, FoundStep] = {}
        for reference in (r for value in values for r in references(value)):
            name = reference.path[0]
            if isinstance(reference, InputRef):
                hops = frame.find_input(name)
                if hops is None:
                    hint = did_you_mean(name, frame.inputs())
                    self._problem(where, f"no enclosing scope declares $.{name}{hint}")
                else:
                    sources.inputs[name] = hops - lift
                continue
            step = found.get(name) or frame.find_step(name)
            if isinstance(step, str):
                self._problem(where, step)
                continue
            found[name] = step
            sources.steps[name] = StepSource(step.source.hops - lift, step.source.suffix)
            if why := unread_attribute(step.statement, reference.path):
                self._problem(where, why)
        return list(found.values())

    def _draw(
        self,
        found: list[FoundStep],
        site: Frame,
        reach: Reach,
        kind: RowKind,
        suffix: str,
        statement: StatementPlan | None,
    ) -> tuple[StepSource, ...]:
        """Draw the edges from the steps found to the row at the site that waits for them."""
        needs = []
        for step in found:
            if step.is_own:
                continue
            needs.append(step.source)
            between: list[Frame] = []
            for _, frame in site.outwards():
                if frame is step.owner:
                    break
                between.append(frame)
            self._note_wait(step, between, statement)
            items = [i for i, frame in enumerate(between) if frame.kind is RowKind.ITEM]
            from_container = step.owner.kind is RowKind.STEP
            if items:
                self._await(step, between, items[-1], from_container)
                continue
            tail = "".join(frame.tail for frame in reversed(between)) + suffix
            sibling = statement if step.owner is site else None
            step.statement.edges.append(Edge(reach, from_container, tail, kind, sibling))
        return tuple(needs)

    def _await(
        self, step: FoundStep, between: list[Frame], outermost: int, from_container: bool
    ) -> None:
        """Let the outermost foreach on the way wait, in place of each of its items."""
        block = between[outermost].block
        assert block is not None
        assert block.foreach is not None
        # The scope row of a foreach is its container: two links out from an item.
        source = StepSource(step.source.hops - outermost - 2, step.source.suffix)
        if source in (*block.foreach.needs, *block.foreach.awaits):
            return  # one edge: the end of a step is counted down once
        block.foreach.awaits.append(source)
        tail = "".join(frame.tail for frame in reversed(between[outermost + 1 :]))
        edge = Edge(Reach.AWAITS, from_container, tail, RowKind.FAN, None)
        step.statement.edges.append(edge)

    def _note_wait(
        self, step: FoundStep, between: list[Frame], statement: StatementPlan | None
    ) -> None:
        """Remember who waits for whom inside one block, so that cycles are found."""
        waiting = statement
        for frame in between:
            waiting = frame.statement or waiting
        block = step.statement.block
        if waiting is not None and waiting.block is block:
            self._waits[block][waiting].add(step.statement)


def _repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
