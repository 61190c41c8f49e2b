"""Resolve the names in expressions, and add the edges of the steps they wait for."""

from __future__ import annotations

from collections.abc import Iterable

from flowengine.program.addresses import Base, RowAddress, RowKind, Sources, StepSource
from flowengine.program.checks import unread_attribute
from flowengine.program.expressions import references
from flowengine.program.link_context import LinkContext
from flowengine.program.nodes import After, Expression, InputRef
from flowengine.program.plan import Edge, EdgeKind, StatementPlan
from flowengine.program.scopes import ERROR_NAMES, Frame, ResolvedStep


class DependencyLinker:
    def __init__(self, context: LinkContext) -> None:
        self._context = context

    def resolve(
        self,
        values: Iterable[Expression],
        frame: Frame,
        sources: Sources,
        where: str,
        *,
        lift: int = 0,
    ) -> list[ResolvedStep]:
        """Record the source of every name; return the steps among them.

        ``lift`` is the number of links from the frame in which names are resolved out to the
        scope row.
        """
        steps: dict[str, ResolvedStep] = {}
        for reference in (r for value in values for r in references(value)):
            name = reference.path[0]
            if isinstance(reference, InputRef):
                hops = frame.find_input(name)
                if hops is None:
                    hint = self._context.did_you_mean(name, frame.inputs())
                    self._context.report(where, f"no enclosing scope declares $.{name}{hint}")
                else:
                    sources.inputs[name] = hops - lift
                continue
            step = steps.get(name) or frame.find_step(name)
            if isinstance(step, str):
                self._context.report(where, step)
                continue
            steps[name] = step
            sources.steps[name] = StepSource(step.source.hops - lift, step.source.suffix)
            if step.has_error and reference.path[1:2] and reference.path[1] in ERROR_NAMES:
                continue
            if why := unread_attribute(step.statement, reference.path):
                self._context.report(where, why)
        return list(steps.values())

    def order(
        self, after: Iterable[After], needed: list[ResolvedStep], frame: Frame, where: str
    ) -> list[ResolvedStep]:
        """Resolve the steps that a statement comes after.

        Steps that must complete are added to `needed`; those of which the end is enough are
        returned. One edge for each step: its end is counted down once.
        """
        ended: dict[str, ResolvedStep] = {}
        completed = {step.statement.address: step for step in needed}
        for each in after:
            step = frame.find_step(each.step)
            if isinstance(step, str):
                self._context.report(where, f"after: {step}")
            elif step.is_own:
                why = f"after: it is part of the step {each.step!r}, which ends after it"
                self._context.report(where, why)
            elif each.is_end_enough:
                ended[step.statement.address] = step
            elif step.statement.address not in completed:
                completed[step.statement.address] = step
                needed.append(step)
        return [step for address, step in ended.items() if address not in completed]

    def add_edges(
        self,
        steps: list[ResolvedStep],
        site: Frame,
        edge_kind: EdgeKind,
        row_kind: RowKind,
        suffix: str = "",
        statement: StatementPlan | None = None,
    ) -> tuple[StepSource, ...]:
        """Add the edges from steps to the row at the site that waits for them."""
        needs = []
        for step in steps:
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
            base = Base.CONTAINER if step.owner.kind is RowKind.STEP else Base.BLOCK
            if items:
                self._await(step, between, items[-1], base)
                continue
            tail = "".join(frame.tail for frame in reversed(between)) + suffix
            sibling = statement if step.owner is site else None
            edge = Edge(edge_kind, RowAddress(base, tail, row_kind), sibling)
            step.statement.edges.append(edge)
        return tuple(needs)

    def _await(self, step: ResolvedStep, between: list[Frame], outermost: int, base: Base) -> None:
        """Let the outermost foreach in between wait, in place of each of its items."""
        block = between[outermost].block
        assert block is not None
        assert block.foreach is not None
        # The scope row of a foreach is its container: two links out from an item.
        source = StepSource(step.source.hops - outermost - 2, step.source.suffix)
        if source in (*block.foreach.needs, *block.foreach.awaits):
            return  # one edge: the end of a step is counted down once
        block.foreach.awaits.append(source)
        tail = "".join(frame.tail for frame in reversed(between[outermost + 1 :]))
        edge = Edge(EdgeKind.AWAITS, RowAddress(base, tail, RowKind.FAN), None)
        step.statement.edges.append(edge)

    def _note_wait(
        self, step: ResolvedStep, between: list[Frame], statement: StatementPlan | None
    ) -> None:
        """Record which statements of one block wait for each other, so that cycles are found."""
        waiting = statement
        for frame in between:
            waiting = frame.statement or waiting
        block = step.statement.block
        if waiting is not None and waiting.block is block:
            self._context.waits[block][waiting].add(step.statement)
