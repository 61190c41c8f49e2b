"""A linked program: every name is resolved, every dependency between steps is an edge."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from flowengine.errors import UnknownWorkflow
from flowengine.program.addresses import NO_READS, ReadSet, RowAddress, RowKind, Sources, StepSource
from flowengine.program.limits import DEFAULT_LIMITS, Limits
from flowengine.program.nodes import (
    EventOptions,
    Expression,
    FacetDeclaration,
    FacetKind,
    Field,
    FunctionOptions,
    Json,
    Mixin,
    Schemas,
)


class EdgeKind(StrEnum):
    """How the end of a step affects a row that waits for it."""

    NEEDS = "needs"  #: the row begins only if the step completed
    AWAITS = "awaits"  #: the row begins when the step has ended, in whichever state
    CAPTURES = "captures"  #: the row yields only when the step has ended


@dataclass(frozen=True, slots=True)
class Edge:
    kind: EdgeKind
    row: RowAddress
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
    name: str
    fields: tuple[Field, ...]


@dataclass(slots=True, eq=False)
class StatementPlan:
    address: str  #: static place in the program, e.g. ``shop.Order/0/charge``
    index: int
    name: str
    kind: StatementKind
    block: BlockPlan
    facet: FacetPlan | None = None  #: of a call
    schema: SchemaPlan | None = None  #: of an instance of a schema
    call_mixins: tuple[Mixin, ...] = ()
    call_aliases: tuple[str, ...] = ()  #: of the mixins at the call that fill no parameter
    own_options: EventOptions | None = None  #: the facet's, changed by mixins
    deadline: float | None = None  #: seconds for all tries, and for everything below it
    arguments: tuple[tuple[str, Expression], ...] = ()
    condition: Expression | None = None  #: of an assert
    sources: Sources = field(default_factory=Sources)
    needs: tuple[StepSource, ...] = ()
    awaits: tuple[StepSource, ...] = ()  #: steps that must end first, in whichever state
    inline_body: Body = ()
    own_catch: BlockPlan | None = None
    always: Body = ()
    own_yields: frozenset[str] = frozenset()  #: attributes that its own body yields, to any step
    edges: list[Edge] = field(default_factory=list)
    carries: bool = False  #: a yield in its own body goes further out than this step
    read_set: ReadSet = NO_READS

    @property
    def body(self) -> Body:
        """The body to run: a statement's own replaces the facet's."""
        return self.inline_body or (self.facet.body if self.facet else ())

    @property
    def options(self) -> EventOptions:
        """The options of its event."""
        assert self.facet is not None
        return self.own_options or self.facet.options

    @property
    def function(self) -> FunctionOptions | None:
        """The options of the durable function that it calls; None: it calls none."""
        return self.facet.function if self.facet else None

    @property
    def target(self) -> str:
        """The name of the facet or schema that it calls; empty for others."""
        called = self.facet or self.schema
        return called.name if called else ""

    @property
    def mixins(self) -> tuple[MixinPlan, ...]:
        """The mixins that run before the event or the body."""
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
    def is_lazy(self) -> bool:
        """Whether it waits for one step, of its block: its row is created when that one ends."""
        waits = self.needs + self.awaits
        return len(waits) == 1 and waits[0].hops == 0


@dataclass(frozen=True, slots=True)
class MixinPlan:
    """A mixin of a signature that is run before the event or the body of its facet."""

    alias: str
    statement: StatementPlan
    missing: tuple[str, ...]  #: parameters that only the call can give


@dataclass(frozen=True, slots=True)
class YieldPlan:
    levels: int  #: 0: to the step whose body this is, 1: to the next enclosing one, …
    #: An attribute that is yielded to a mixin is named ``alias.attribute``.
    attributes: tuple[tuple[str, Expression], ...]


@dataclass(slots=True, eq=False)
class ForeachPlan:
    """The list that a foreach block iterates over, and how."""

    variable: str
    iterable: Expression
    sources: Sources
    limit: Expression | None = None  #: most items in progress at once
    collects_errors: bool = False
    needs: tuple[StepSource, ...] = ()  #: steps that the iterable names
    #: Steps outside the foreach that its items name. The foreach waits for them in place of its
    #: items, so that the end of one step never visits every item.
    awaits: list[StepSource] = field(default_factory=list)
    #: Attributes that an empty list fills with ``[]``: (levels, attribute).
    empty_lists: list[tuple[int, str]] = field(default_factory=list)
    #: The only step of an item, if it is a plain event: then items have no rows of their own.
    single_call: StatementPlan | None = None


@dataclass(slots=True, eq=False)
class ChoicePlan:
    """The cases of a when block, and how to choose among them."""

    conditions: tuple[Expression | None, ...]  #: None: the default
    cases: tuple[BlockPlan, ...]
    is_first_only: bool  #: only the first matching case runs
    is_optional: bool  #: of a catch: no match is no error
    sources: Sources = field(default_factory=Sources)  #: read from the when block's own row
    #: Steps that the conditions name, as seen from the container's row.
    needs: tuple[StepSource, ...] = ()


@dataclass(slots=True, eq=False)
class BlockPlan:
    """One block of a body, or one case of a when block."""

    address: str
    index: int
    segment: str  #: added to the container's path
    foreach: ForeachPlan | None = None
    choice: ChoicePlan | None = None
    when: BlockPlan | None = None  #: of a case: the block it is a case of
    is_script: bool = False  #: it yields the results of its only step
    statements: tuple[StatementPlan, ...] = ()
    by_name: dict[str, StatementPlan] = field(default_factory=dict)
    yields: tuple[YieldPlan, ...] = ()
    yield_sources: Sources = field(default_factory=Sources)
    captures: tuple[StepSource, ...] = ()  #: steps outside the block that its yields name
    read_set: ReadSet = NO_READS

    @property
    def carriers(self) -> tuple[StatementPlan, ...]:
        return tuple(s for s in self.statements if s.carries)

    @property
    def single_call_step(self) -> StatementPlan | None:
        """Its only step, if that is an event without body, handlers and mixins.

        The yields of the block may depend on that step and on rows further out, but not on the
        item, which has no row.
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
        """The kind of the block's row."""
        if self.foreach is not None:
            return RowKind.FAN
        return RowKind.BLOCK if self.choice is None else RowKind.WHEN

    @property
    def needs(self) -> tuple[StepSource, ...]:
        """Steps that must complete before it begins, as seen from the container's row."""
        clause = self.foreach or self.choice
        return clause.needs if clause else ()

    @property
    def awaits(self) -> tuple[StepSource, ...]:
        """Steps that must end, in whichever state, before it begins."""
        return tuple(self.foreach.awaits) if self.foreach else ()


Body: TypeAlias = tuple[BlockPlan, ...]  #: blocks that run side by side, after a step's event


@dataclass(slots=True, eq=False)
class FacetPlan:
    name: str
    node: FacetDeclaration
    defaults: dict[str, Json] = field(default_factory=dict)
    body: Body = ()
    catch: BlockPlan | None = None
    mixins: tuple[MixinPlan, ...] = ()  #: those with an alias
    pre_script: StatementPlan | None = None  #: changes the parameters first
    schemas: Schemas = field(default_factory=dict)  #: of the whole program
    is_recursive: bool = False  #: it may call itself, through other facets too
    read_set: ReadSet = NO_READS  #: of the root step of a run
    deadline: float | None = None  #: of a workflow: seconds for a run that is started without one
    runs: int | None = None  #: of a workflow: how many of its runs are open at a time

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
    def function(self) -> FunctionOptions | None:
        """The options of a durable function; None: it is none."""
        return self.node.function

    @property
    def aliases(self) -> frozenset[str]:
        return frozenset(mixin.alias for mixin in self.mixins)

    @property
    def filled(self) -> frozenset[str]:
        """Parameters that a mixin of the signature fills, by its alias."""
        if not self.node.mixins:
            return frozenset()
        aliases = {mixin.alias for mixin in self.node.mixins}
        return frozenset(param.name for param in self.params if param.name in aliases)

    @property
    def catches(self) -> tuple[BlockPlan, ...]:
        return () if self.catch is None else (self.catch,)

    @property
    def always(self) -> Body:
        return ()  # only a statement has one

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(slots=True, eq=False)
class Plan:
    facets: dict[str, FacetPlan] = field(default_factory=dict)
    statements: dict[str, StatementPlan] = field(default_factory=dict)
    blocks: dict[str, BlockPlan] = field(default_factory=dict)
    #: By qualified name, and by short name where it is the only one.
    schemas: dict[str, tuple[Field, ...]] = field(default_factory=dict)
    #: The statements that call a facet, by its name.
    callers: dict[str, list[StatementPlan]] = field(default_factory=dict)
    has_recursion: bool = False  #: some facet may call itself
    has_deadlines: bool = False  #: some statement has a deadline
    is_stored: bool = False  #: linked without the checks of new programs
    limits: Limits = DEFAULT_LIMITS

    def workflow(self, name: str) -> FacetPlan:
        """Return the workflow of that qualified or unique short name."""
        facet = self.facets.get(name)
        if facet is not None and facet.kind is FacetKind.WORKFLOW:
            return facet
        workflows = {n: f for n, f in self.facets.items() if f.kind is FacetKind.WORKFLOW}
        candidates = [f for f in workflows.values() if f.short_name == name]
        if len(candidates) == 1:
            return candidates[0]
        raise UnknownWorkflow(name, sorted(workflows))
