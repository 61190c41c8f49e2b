"""The program as values: one frozen class per node of the AFL program JSON.

Ids and source locations take no part in comparison, in the serialized form (`serializer`) and in
the content hash. Both generations of AFL's JSON are parsed into these classes (`parser`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from flowengine.program.event_options import NO_OPTIONS
from flowengine.program.event_options import EventOptions as EventOptions
from flowengine.program.event_options import RetryPolicy as RetryPolicy
from flowengine.program.function_options import FunctionOptions as FunctionOptions

Json: TypeAlias = Any  #: None, bool, int, float, str, list and dict with text keys


@dataclass(frozen=True, slots=True)
class Location:
    line: int
    column: int = 0
    file: str = ""  #: empty for AFL text; the Python file for traced functions

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else f"line {self.line}"


# --- Expressions ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal:
    value: Json


@dataclass(frozen=True, slots=True)
class InputRef:
    """``$.name.field``: a parameter or foreach variable of an enclosing scope."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepRef:
    """``step.attribute.field``; a path of one name is the whole step."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Concat:
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class ArrayLiteral:
    elements: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class MapLiteral:
    entries: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Index:
    target: Expression
    index: Expression


Expression: TypeAlias = (
    Literal | InputRef | StepRef | Concat | Binary | Unary | ArrayLiteral | MapLiteral | Index
)

BINARY_OPERATORS = frozenset(
    ("+", "-", "*", "/", "%", "==", "!=", ">", "<", ">=", "<=", "&&", "||")
) | frozenset(("in", "not in", "contains", "startsWith", "endsWith"))
UNARY_OPERATORS = frozenset(["-", "!"])

# --- Calls, statements, blocks ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Mixin:
    """``with Target(args) as alias``, on a call or on a signature."""

    target: str
    arguments: tuple[Argument, ...] = ()
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    target: str
    arguments: tuple[Argument, ...] = ()
    mixins: tuple[Mixin, ...] = ()


@dataclass(frozen=True, slots=True)
class After:
    """A step that must end first although its result is not used."""

    step: str
    is_end_enough: bool = False  #: it may have failed; else it must have completed


@dataclass(frozen=True, slots=True)
class StepStatement:
    name: str
    call: Call
    body: tuple[Block, ...] = ()
    catch: CatchClause | None = None
    always: tuple[Block, ...] = ()  #: runs when the step has ended, in any state; yields nothing
    location: Location | None = field(default=None, compare=False)
    after: tuple[After, ...] = ()


@dataclass(frozen=True, slots=True)
class LogStatement:
    arguments: tuple[Argument, ...]
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class AssertStatement:
    condition: Expression
    location: Location | None = field(default=None, compare=False)


Statement: TypeAlias = StepStatement | LogStatement | AssertStatement


@dataclass(frozen=True, slots=True)
class YieldStatement:
    call: Call
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ForeachClause:
    variable: str
    iterable: Expression
    limit: Expression | None = None  #: most items in progress at once
    collect_errors: bool = False  #: failed items are listed in ``errors``; the foreach completes


@dataclass(frozen=True, slots=True)
class WhenCase:
    condition: Expression | None  #: None: the default case
    statements: tuple[Statement, ...] = ()
    yields: tuple[YieldStatement, ...] = ()


@dataclass(frozen=True, slots=True)
class ScriptBlock:
    language: str
    code: str


@dataclass(frozen=True, slots=True)
class PromptBlock:
    system: str = ""
    template: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class CatchClause:
    statements: tuple[Statement, ...] = ()
    yields: tuple[YieldStatement, ...] = ()
    cases: tuple[WhenCase, ...] = ()
    first_match: bool = False  #: only the first matching case runs


@dataclass(frozen=True, slots=True)
class Block:
    """One ``andThen``: plain, foreach, when or script."""

    statements: tuple[Statement, ...] = ()
    yields: tuple[YieldStatement, ...] = ()
    foreach: ForeachClause | None = None
    cases: tuple[WhenCase, ...] = ()
    script: ScriptBlock | None = None
    first_match: bool = False  #: only the first matching case runs
    location: Location | None = field(default=None, compare=False)


# --- Declarations -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArrayType:
    element: Type


Type: TypeAlias = str | ArrayType  #: "Long", "String", … or a schema's or facet's name


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, a return or a schema's field."""

    name: str
    type: Type = "Json"
    default: Expression | None = None
    #: JSON Schema of the value, where it is more exact than `type`.
    schema: Mapping[str, Json] | None = None


#: The fields of each schema, by name.
Schemas: TypeAlias = Mapping[str, tuple[Field, ...]]


class FacetKind(StrEnum):
    FACET = "FacetDecl"
    EVENT = "EventFacetDecl"
    WORKFLOW = "WorkflowDecl"


@dataclass(frozen=True, slots=True)
class FacetDeclaration:
    kind: FacetKind
    name: str
    params: tuple[Field, ...] = ()
    returns: tuple[Field, ...] = ()
    mixins: tuple[Mixin, ...] = ()
    body: tuple[Block, ...] = ()
    prompt: PromptBlock | None = None
    pre_script: ScriptBlock | None = None
    catch: CatchClause | None = None
    options: EventOptions = NO_OPTIONS
    location: Location | None = field(default=None, compare=False)
    function: FunctionOptions | None = None  #: of an event facet that is a durable function


@dataclass(frozen=True, slots=True)
class SchemaDeclaration:
    name: str
    fields: tuple[Field, ...] = ()
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ImplicitDeclaration:
    name: str
    call: Call
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Namespace:
    name: str
    uses: tuple[str, ...] = ()
    declarations: tuple[Declaration, ...] = ()
    location: Location | None = field(default=None, compare=False)


Declaration: TypeAlias = FacetDeclaration | SchemaDeclaration | ImplicitDeclaration | Namespace


@dataclass(frozen=True, slots=True)
class Program:
    declarations: tuple[Declaration, ...] = ()
