"""Find out where names come from, and draw who waits for whom."""

from __future__ import annotations

from collections.abc import Iterable

from flowengine.errors import Problem
from flowengine.program.checks import unread_attribute
from flowengine.program.expressions import references
from flowengine.program.names import Declared, Names, did_you_mean
from flowengine.program.nodes import Expression, InputRef
from flowengine.program.plan import (
    BlockPlan,
    Edge,
    Plan,
    Reach,
    RowKind,
    Sources,
    StatementPlan,
    StepSource,
)
from flowengine.program.scopes import ERROR_NAMES, FoundStep, Frame


class Wiring:
    """What is known while a program is linked: its names, its plan so far, its problems."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.plan = Plan()
        self.problems: list[Problem] = list(self.names.problems)
        self._seen_from: Declared
        #: block → statement → statements of that block it waits for, through its body too
        self._waits: dict[BlockPlan, dict[StatementPlan, set[StatementPlan]]] = {}

    def _problem(self, where: str, what: str) -> None:
        problem = Problem(where, what)
        if problem not in self.problems:
            self.problems.append(problem)

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
            if step.has_error and reference.path[1:2] and reference.path[1] in ERROR_NAMES:
                continue
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


def repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
