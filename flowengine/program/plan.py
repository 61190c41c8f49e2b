"""A program made ready to run: every name resolved, every dependency drawn.

Rows of a run form a tree: a step's body is a row of blocks, a block's children
are the steps of its statements; a foreach block has one child block per item, a when
block one per case. What a step does after a failure, and at its end, is a block too.

    root step ─ block ─ step ─ block ─ …
              │              └ catch block ─ …
              ├ foreach block ─ item ─ step …
              └ when block ─ case ─ step …

A *scope row* is the row from which an expression is read: for the arguments of a
statement and the yields of a block it is the block's row, for what a foreach
iterates it is the container step's row. From there a source says how many parent
links to climb, so reading a name never searches.

Paths grow the same way, so the path of any row can be written down from the path
of another without loading either: a statement adds ``.name``, a block adds its
segment (nothing when it is the only block of its body), an item adds ``[i]``, a case
``[case-i]``. Names of steps hold no brackets, so that no two rows share a path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from flowengine.errors import UnknownWorkflow
from flowengine.program.nodes import (
    EventOptions,
    Expression,
    FacetDeclaration,
    FacetKind,
    Field,
    Json,
    Schemas,
)


class RowKind(StrEnum):
    """What a row of a run is; part of the row's key, because paths may coincide."""

    STEP = "s"
    BLOCK = "b"
    FAN = "f"
    ITEM = "i"
    WHEN = "w"
    CASE = "c"


@dataclass(frozen=True, slots=True)
class StepSource:
    """Where a step that an expression names is found."""

    hops: int  #: parent links to climb from the scope row
    suffix: str | None  #: what its path adds to that row's path; None: it is that row


@dataclass(slots=True)
class Sources:
    """Where each name of one place in the program is found."""

    inputs: dict[str, int] = field(default_factory=dict)  #: name → hops from the scope row
    steps: dict[str, StepSource] = field(default_factory=dict)


class Reach(StrEnum):
    """How the end of one step concerns a row that waits for it."""

    NEEDS = "needs"  #: it can begin only if the step completed
    AWAITS = "awaits"  #: it begins when the step has ended, however
    CAPTURES = "captures"  #: it can yield only when the step has ended


@dataclass(frozen=True, slots=True)
class Edge:
    """From a statement to a row that waits for it."""

    reach: Reach
    from_container: bool  #: the suffix starts at the container's path, not at the block's
    suffix: str
    kind: RowKind
    #: The waiting statement, when it stands in the same block: its row may not exist yet.
    sibling: StatementPlan | None


class StatementKind(StrEnum):
    CALL = "VariableAssignment"
    SCHEMA = "SchemaInstantiation"
    MIXIN = "Mixin"
    SCRIPT = "Script"
    LOG = "SysLog"
    ASSERT = "SysAssert"


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """What an instance of a schema holds."""

    name: str
    fields: tuple[Field, ...]


@dataclass(slots=True, eq=False)
class StatementPlan:
    """One statement of a block."""

    address: str  #: static place in the program, e.g. ``shop.Order/0/charge``
    index: int
    name: str
    kind: StatementKind
    block: BlockPlan
    facet: FacetPlan | None = None  #: what a call calls
    schema: SchemaPlan | None = None  #: what a step is an instance of
    call_aliases: tuple[str, ...] = ()  #: of the mixins at the call
    timeout: float | None = None  #: seconds, when a mixin says so; else the facet's own holds
    arguments: tuple[tuple[str, Expression], ...] = ()
    condition: Expression | None = None  #: of an assert
    sources: Sources = field(default_factory=Sources)
    needs: tuple[StepSource, ...] = ()
    inline_body: BodyPlan | None = None
    own_catch: BlockPlan | None = None
    always: BodyPlan | None = None
    own_yields: frozenset[str] = frozenset()  #: attributes that its own body yields, to anyone
    edges: list[Edge] = field(default_factory=list)
    carries: bool = False  #: a yield in its own body goes further out than this step

    @property
    def body(self) -> BodyPlan | None:
        """The body to run: a statement's own replaces the facet's."""
        return self.inline_body or (self.facet.body if self.facet else None)

    @property
    def target(self) -> str:
        """The name of the facet or schema that it calls; empty for others."""
        found = self.facet or self.schema
        return found.name if found else ""

    @property
    def mixins(self) -> tuple[MixinPlan, ...]:
        """What runs before the event or the body."""
        return self.facet.mixins if self.facet else ()

    @property
    def pre_script(self) -> StatementPlan | None:
        return self.facet.pre_script if self.facet else None

    @property
    def aliases(self) -> frozenset[str]:
        """The names of mixins, below which its parameters hold maps."""
        return frozenset((*self.call_aliases, *(mixin.alias for mixin in self.mixins)))

    @property
    def catches(self) -> tuple[BlockPlan, ...]:
        """The catches to try, one after the other: the facet's, then the statement's own."""
        of_facet = self.facet.catch if self.facet else None
        return tuple(catch for catch in (of_facet, self.own_catch) if catch is not None)

    @property
    def opens(self) -> bool:
        """Whether the end of this statement brings another of its block."""
        return any(edge.sibling is not None and edge.sibling.is_lazy for edge in self.edges)

    @property
    def is_lazy(self) -> bool:
        """One step of the same block is all it needs: its row is written when that has ended."""
        return len(self.needs) == 1 and self.needs[0].hops == 0


@dataclass(frozen=True, slots=True)
class MixinPlan:
    """A mixin of a signature that is run before the event or the body of its facet."""

    alias: str
    statement: StatementPlan
    missing: tuple[str, ...]  #: parameters that only the call can give


@dataclass(frozen=True, slots=True)
class YieldPlan:
    """One yield of a block."""

    levels: int  #: 0: to the step whose body this is, 1: to the next enclosing one, …
    #: What is yielded to a mixin is named ``alias.attribute``.
    attributes: tuple[tuple[str, Expression], ...]


@dataclass(slots=True, eq=False)
class ForeachPlan:
    """What a foreach block iterates over."""

    variable: str
    iterable: Expression
    sources: Sources
    limit: Expression | None = None  #: how many items may be under way at once
    collects_errors: bool = False
    needs: tuple[StepSource, ...] = ()  #: steps that the iterable names
    #: Steps outside the foreach that its items name: it starts when they have ended, so
    #: that the end of one step never has to visit every item.
    awaits: list[StepSource] = field(default_factory=list)
    #: Attributes that an empty list fills with ``[]``: (levels, attribute).
    empty_lists: list[tuple[int, str]] = field(default_factory=list)
    #: The only step of an item, if it can stand for it: then items have no rows of their own.
    lone: StatementPlan | None = None


@dataclass(slots=True, eq=False)
class ChoicePlan:
    """Which cases of a when block run."""

    conditions: tuple[Expression | None, ...]  #: None: the default
    cases: tuple[BlockPlan, ...]
    is_first_only: bool  #: of the cases that match only the first runs
    is_optional: bool  #: without a match nothing is wrong: of a catch
    sources: Sources = field(default_factory=Sources)  #: read from the when block's own row
    #: Steps that the conditions name, as seen from the container's row.
    needs: tuple[StepSource, ...] = ()


@dataclass(slots=True, eq=False)
class BlockPlan:
    """One block of a body, or one case of a when block."""

    address: str
    index: int
    segment: str  #: what its path adds to the container's
    foreach: ForeachPlan | None = None
    choice: ChoicePlan | None = None
    when: BlockPlan | None = None  #: of a case: the block it is a case of
    is_script: bool = False  #: what its only step returns is what it yields
    statements: tuple[StatementPlan, ...] = ()
    by_name: dict[str, StatementPlan] = field(default_factory=dict)
    yields: tuple[YieldPlan, ...] = ()
    yield_sources: Sources = field(default_factory=Sources)
    captures: tuple[StepSource, ...] = ()  #: steps outside the block that its yields name

    @property
    def carriers(self) -> tuple[StatementPlan, ...]:
        return tuple(s for s in self.statements if s.carries)

    @property
    def single_call_step(self) -> StatementPlan | None:
        """Its only step, if it asks the outside for something and nothing else happens to it.

        What the block yields may then depend on that step and on what lies further out, but
        not on the item.
        """
        if len(self.statements) != 1 or self.is_script or self.captures:
            return None
        (only,) = self.statements
        if only.kind is not StatementKind.CALL or only.facet is None:
            return None
        if only.facet.kind is not FacetKind.EVENT:
            return None
        more = only.body or only.catches or only.always or only.aliases or only.pre_script
        return None if more or 0 in self.yield_sources.inputs.values() else only

    @property
    def kind(self) -> RowKind:
        """What the row is that stands for the whole block."""
        if self.foreach is not None:
            return RowKind.FAN
        return RowKind.BLOCK if self.choice is None else RowKind.WHEN

    @property
    def needs(self) -> tuple[StepSource, ...]:
        """Steps that must complete before it begins, as seen from the container's row."""
        found = self.foreach or self.choice
        return found.needs if found else ()

    @property
    def awaits(self) -> tuple[StepSource, ...]:
        """Steps that must end, however, before it begins."""
        return tuple(self.foreach.awaits) if self.foreach else ()


@dataclass(slots=True, eq=False)
class BodyPlan:
    """The blocks that run after a step's event, side by side."""

    blocks: tuple[BlockPlan, ...] = ()


@dataclass(slots=True, eq=False)
class FacetPlan:
    """A facet with its body linked."""

    name: str
    node: FacetDeclaration
    defaults: dict[str, Json] = field(default_factory=dict)
    body: BodyPlan | None = None
    catch: BlockPlan | None = None
    mixins: tuple[MixinPlan, ...] = ()  #: those with an alias
    pre_script: StatementPlan | None = None  #: what changes the parameters before all else
    schemas: Schemas = field(default_factory=dict)  #: of the whole program

    @property
    def kind(self) -> FacetKind:
        return self.node.kind

    @property
    def params(self) -> tuple[Field, ...]:
        return self.node.params

    @property
    def returns(self) -> tuple[Field, ...]:
        return self.node.returns

    @property
    def options(self) -> EventOptions:
        return self.node.options

    @property
    def aliases(self) -> frozenset[str]:
        return frozenset(mixin.alias for mixin in self.mixins)

    @property
    def catches(self) -> tuple[BlockPlan, ...]:
        return () if self.catch is None else (self.catch,)

    @property
    def always(self) -> BodyPlan | None:
        return None  # only a statement has one

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(slots=True, eq=False)
class Plan:
    """A linked program."""

    facets: dict[str, FacetPlan] = field(default_factory=dict)
    statements: dict[str, StatementPlan] = field(default_factory=dict)
    blocks: dict[str, BlockPlan] = field(default_factory=dict)
    #: By qualified name, and by short name where it is the only one.
    schemas: dict[str, tuple[Field, ...]] = field(default_factory=dict)

    def workflow(self, name: str) -> FacetPlan:
        """Return the workflow of that qualified or unique short name."""
        workflows = {n: f for n, f in self.facets.items() if f.kind is FacetKind.WORKFLOW}
        if name in workflows:
            return workflows[name]
        found = [f for f in workflows.values() if f.short_name == name]
        if len(found) == 1:
            return found[0]
        raise UnknownWorkflow(name, sorted(workflows))
