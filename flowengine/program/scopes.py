"""Lexical scopes while a program is linked.

One frame for each row from a place in the program outwards, in the same order as the parent
links of the rows at run time: so the number of frames is the hops of a source. A facet's body
ends at the facet's step; a statement's own body continues outwards through the block that the
statement stands in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flowengine.program.addresses import RowKind, StepSource
from flowengine.program.plan import BlockPlan, FacetPlan, StatementPlan

#: The parts of an error that a catch reads: of its step, and as ``$.error`` and so on.
ERROR_NAMES = frozenset({"error", "error_type", "error_types", "error_path"})


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One row, and the rows outside it."""

    kind: RowKind
    outer: Frame | None
    tail: str = ""  #: added to the outer row's path
    block: BlockPlan | None = None  #: of a block, a foreach block and an item
    earlier: tuple[BlockPlan, ...] = ()  #: the blocks before this one in the same body
    later: tuple[BlockPlan, ...] = ()
    facet: FacetPlan | None = None  #: of a step
    statement: StatementPlan | None = None  #: of a step with a body of its own
    variable: str = ""  #: of an item
    role: str = ""  #: "catch" or "always": of the block in which a step's error can be read

    def outwards(self) -> Iterator[tuple[int, Frame]]:
        """Yield this frame and all outer ones, each with its hops from here."""
        hops, frame = 0, self
        while True:
            yield hops, frame
            if frame.outer is None:
                return
            hops, frame = hops + 1, frame.outer

    @property
    def aliases(self) -> frozenset[str]:
        """Names of mixins that can be read of this step."""
        plan = self.statement or self.facet
        return plan.aliases if plan else frozenset()

    def find_input(self, name: str) -> int | None:
        """Return the hops to the row that declares ``$.name``."""
        for hops, frame in self.outwards():
            if frame.kind is RowKind.ITEM and frame.variable == name:
                return hops
            if frame.role and name in ERROR_NAMES:
                return hops + 1  # the step's row holds it
            if frame.facet and any(param.name == name for param in frame.facet.params):
                return hops
            if name in frame.aliases:
                return hops
        return None

    def inputs(self) -> list[str]:
        """Return every name that ``$`` could read here."""
        frames = [frame for _, frame in self.outwards()]
        params = [p.name for frame in frames if frame.facet for p in frame.facet.params]
        errors = sorted(ERROR_NAMES) if any(frame.role for frame in frames) else []
        aliases = [alias for frame in frames for alias in sorted(frame.aliases)]
        return [frame.variable for frame in frames if frame.variable] + params + aliases + errors

    def find_step(self, name: str) -> ResolvedStep | str:
        """Return the step of that name, or the reason why there is none."""
        hint = ""
        inner = self
        for hops, frame in self.outwards():
            if frame.statement and frame.statement.name == name:
                source = StepSource(hops, None)
                return ResolvedStep(frame.statement, frame, source, has_error=bool(inner.role))
            inner = frame
            if frame.block is None or frame.kind is RowKind.FAN:
                continue
            if found := frame.block.by_name.get(name):
                return ResolvedStep(found, frame, StepSource(hops, f".{name}"))
            for block in frame.earlier:
                if found := block.by_name.get(name):
                    if block.foreach is None:
                        # An item's parent is its foreach block, whose parent is the step.
                        links = 2 if frame.kind is RowKind.ITEM else 1
                        container = _outer(frame, links)
                        source = StepSource(hops + links, f"{block.segment}.{name}")
                        return ResolvedStep(found, container, source)
                    hint = "; a step inside a foreach has one value per item: yield it instead"
                elif block.choice and any(name in c.by_name for c in block.choice.cases):
                    hint = "; it stands in a case, which may not run: yield it instead"
            if any(name in block.by_name for block in frame.later):
                hint = "; it stands in a later block, and a block sees only earlier ones"
        return f"unknown step {name!r}{hint}"


@dataclass(frozen=True, slots=True)
class ResolvedStep:
    """The step that a name in an expression means."""

    statement: StatementPlan
    owner: Frame  #: the frame that has it: its block, its container, or itself
    source: StepSource
    has_error: bool = False  #: the reader stands in its catch or always block

    @property
    def is_own(self) -> bool:
        """Whether the reader stands in its body: then it has its results already."""
        return self.source.suffix is None


def _outer(frame: Frame, hops: int) -> Frame:
    for _ in range(hops):
        assert frame.outer is not None
        frame = frame.outer
    return frame
