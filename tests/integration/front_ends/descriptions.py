"""Language-neutral descriptions of workflows.

A body is a list of named statements and a value. It reads earlier statements of its own or an
enclosing body; a facet's body reads only the facet's parameters. Values are integers, or lists
of integers returned by loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# --- values ---


@dataclass(frozen=True)
class Number:
    value: int


@dataclass(frozen=True)
class Input:
    """A parameter, or the item of a loop."""

    name: str


@dataclass(frozen=True)
class Result:
    """The result of a step."""

    name: str


@dataclass(frozen=True)
class Results:
    """The results of a loop."""

    name: str
    collects: bool


@dataclass(frozen=True)
class Errors:
    """The collected errors of a loop."""

    name: str


@dataclass(frozen=True)
class Operation:
    operator: str  #: + - * %
    left: Value
    right: Value


@dataclass(frozen=True)
class Item:
    of: Results
    index: Value


@dataclass(frozen=True)
class Listed:
    elements: tuple[Value, ...]


Value: TypeAlias = Number | Input | Result | Results | Errors | Operation | Item | Listed


@dataclass(frozen=True)
class Compared:
    operator: str  #: == != < <= > >=
    left: Value
    right: Value


@dataclass(frozen=True)
class Joined:
    operator: str  #: && ||
    left: Condition
    right: Condition


@dataclass(frozen=True)
class Not:
    condition: Condition


Condition: TypeAlias = Compared | Joined | Not


# --- statements ---


@dataclass(frozen=True)
class Call:
    """A call of an event facet or of a facet that the description declares."""

    name: str
    facet: str
    arguments: dict[str, Value]


@dataclass(frozen=True)
class Loop:
    name: str
    variable: str
    items: Listed | Results
    body: Body
    limit: Value | None
    collects: bool


@dataclass(frozen=True)
class Choice:
    name: str
    cases: tuple[tuple[Condition, Body], ...]
    otherwise: Body


@dataclass(frozen=True)
class Attempt:
    name: str
    body: Body
    handlers: tuple[tuple[str | None, Body], ...]  #: by type of error; None: any
    shows: str | None  #: field of the error that the handlers show first: message, type or path
    always: Body | None


Statement: TypeAlias = Call | Loop | Choice | Attempt


@dataclass(frozen=True)
class Body:
    statements: tuple[Statement, ...]
    value: Value


@dataclass(frozen=True)
class Facet:
    name: str
    parameters: tuple[str, ...]
    body: Body
    is_workflow: bool = False  #: a workflow may be called as a step too


@dataclass(frozen=True)
class Description:
    """A workflow of one parameter, `n`, and the facets it calls."""

    facets: tuple[Facet, ...]
    body: Body

    def bodies(self) -> list[Body]:
        found = [self.body, *(facet.body for facet in self.facets)]
        for body in found:
            for statement in body.statements:
                found += inner_bodies(statement)
        return found

    def can_be_text(self) -> bool:
        """Whether AFL text can express it. A constant limit has no effect and is omitted."""
        return not any(_beyond_text(s) for body in self.bodies() for s in body.statements)


def inner_bodies(statement: Statement) -> list[Body]:
    match statement:
        case Call():
            return []
        case Loop():
            return [statement.body]
        case Choice():
            return [*(body for _, body in statement.cases), statement.otherwise]
        case Attempt():
            handlers = [body for _, body in statement.handlers]
            return [statement.body, *handlers, *([statement.always] if statement.always else [])]


def _beyond_text(statement: Statement) -> bool:
    match statement:
        case Loop():
            return statement.collects or not isinstance(statement.limit, Number | None)
        case Attempt():
            return statement.always is not None
    return False


#: The event facets there are, with their parameters; `by` has a default, `xs` is a list.
EVENTS = {
    "act": ("x", "by"),
    "add": ("a", "b"),
    "risk": ("x",),  # body of attempts: fails often
    "total": ("xs",),
    "show": ("text",),
}
DEFAULT_BY = 2
ERRORS = ("Refused", "Odd")  #: the types of their failures
