"""Write a description as program JSON and as AFL text.

Equivalent to the traced module with other names: event facets return `y` instead of `result`;
loops, choices and attempts are facets of the program. In text, each case also requires that the
cases before it do not match, and limits are omitted.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from tests.builders import (
    Node,
    block,
    case,
    catching,
    catching_when,
    default,
    event,
    facet,
    given,
    item,
    listed,
    namespace,
    of,
    op,
    program,
    step,
    to,
    when,
    workflow,
)
from tests.integration.front_ends.descriptions import (
    DEFAULT_BY,
    Attempt,
    Body,
    Call,
    Choice,
    Compared,
    Condition,
    Description,
    Errors,
    Input,
    Item,
    Joined,
    Listed,
    Loop,
    Not,
    Number,
    Operation,
    Result,
    Results,
    Statement,
    Value,
)
from tests.unit.afl.texts import text_of

_BY = {"name": "by", "type": "Long", "default": {"type": "Int", "value": DEFAULT_BY}}
_FACETS = (
    event("act", ["x:Long", _BY], "y:Long"),
    event("add", "a:Long b:Long", "y:Long"),
    event("risk", "x:Long", "y:Long"),
    event("total", "xs:[Long]", "y:Long"),
    event("show", "text:String", "y:Long"),
    facet("Choose", "", "y"),
    facet("Try", "", "y"),
)
#: Fields of an error in Python and their names in a program.
_ERROR_FIELDS = {"message": "error", "type": "error_type", "path": "error_path"}


def document(description: Description) -> Node:
    """Return the program, including constructs that AFL text lacks."""
    return _Writer(for_text=False).program(description)


def text(description: Description) -> str:
    """Return the program as AFL text, for a description that can be text."""
    return text_of(_Writer(for_text=True).program(description))


class _Writer:
    def __init__(self, for_text: bool) -> None:
        self._for_text = for_text

    def program(self, description: Description) -> Node:
        parts = [
            (workflow if part.is_workflow else facet)(
                part.name,
                [f"{name}:Long" for name in part.parameters],
                "y",
                self._block(part.name, part.body),
            )
            for part in description.facets
        ]
        body = self._block("Work", description.body, returned="out")
        errors = "" if self._for_text else " errors:[Json]"
        each = facet("Each", "list:[Json]", f"ys:[Json]{errors}")
        work = workflow("Work", "n:Long", "out", body)
        return program(namespace("w", *_FACETS, each, *parts, work))

    def _block(self, target: str, body: Body, returned: str = "y", **clause: Any) -> Node:
        value = _value(body.value)
        yielded = to(target, **{returned: listed(value) if clause else value})
        return block(*self._statements(body), yields=[yielded], **clause)

    def _statements(self, body: Body) -> list[Node]:
        return [self._statement(statement) for statement in body.statements]

    def _case(self, target: str, condition: Any, body: Body, *before: Node) -> Node:
        """Return a case; without a condition it is the default."""
        statements, yields = self._statements(body), [to(target, y=_value(body.value))]
        if condition is None:
            return default(*before, *statements, yields=yields)
        return case(condition, *before, *statements, yields=yields)

    def _statement(self, statement: Statement) -> Node:
        name = statement.name
        match statement:
            case Call(_, target, arguments):
                return step(name, target, **{p: _value(value) for p, value in arguments.items()})
            case Loop():
                clause: dict[str, Any] = {"foreach": (statement.variable, given("list"))}
                if statement.limit is not None and not self._for_text:
                    clause["limit"] = _value(statement.limit)
                if statement.collects:
                    clause["collect_errors"] = True
                body = self._block("Each", statement.body, "ys", **clause)
                return step(name, "Each", body, list=_value(statement.items))
            case Choice():
                conditions = self._conditions([_condition(c) for c, _ in statement.cases])
                bodies = [*(body for _, body in statement.cases), statement.otherwise]
                cases = [
                    self._case("Choose", condition, body)
                    for condition, body in zip([*conditions, None], bodies, strict=True)
                ]
                return step(name, "Choose", when(*cases, first=not self._for_text))
            case Attempt():
                return self._attempt(statement)

    def _conditions(self, conditions: list[Node]) -> list[Node]:
        """In text, add the negation of the earlier conditions to each."""
        if not self._for_text:
            return conditions
        return [
            reduce(lambda earlier, c: op(earlier, "&&", c), [*map(_not, conditions[:place]), last])
            for place, last in enumerate(conditions)
        ]

    def _attempt(self, statement: Attempt) -> Node:
        name = statement.name
        node = step(name, "Try", self._block("Try", statement.body))
        messages = [
            step(f"{name}_shown", "show", text=of(f"{name}.{_ERROR_FIELDS[shows]}"))
            for shows in [statement.shows]
            if shows
        ]
        kinds = [kind for kind, _ in statement.handlers]
        if kinds == [None]:
            caught = statement.handlers[0][1]
            yields = [to("Try", y=_value(caught.value))]
            node = catching(node, *messages, *self._statements(caught), yields=yields)
        elif kinds:
            asked = [
                op(of(f"{name}.error_type"), "==", {"type": "String", "value": kind})
                for kind in kinds
                if kind is not None
            ]
            conditions = [*self._conditions(asked), *([None] if None in kinds else [])]
            cases = [
                self._case("Try", condition, body, *messages)
                for condition, (_, body) in zip(conditions, statement.handlers, strict=True)
            ]
            node = catching_when(node, *cases, first=not self._for_text)
        if statement.always is not None:
            node["always"] = block(*self._statements(statement.always))
        return node


def _value(value: Value) -> Node:
    match value:
        case Number(number):
            return {"type": "Int", "value": number}
        case Input(name):
            return given(name)
        case Result(name):
            return of(f"{name}.y")
        case Results(name):
            return of(f"{name}.ys")
        case Errors(name):
            return of(f"{name}.errors")
        case Operation(operator, left, right):
            return op(_value(left), operator, _value(right))
        case Item(results, index):
            return item(_value(results), _value(index))
        case Listed(elements):
            return listed(*map(_value, elements))


def _condition(condition: Condition) -> Node:
    match condition:
        case Compared(operator, left, right):
            return op(_value(left), operator, _value(right))
        case Joined(operator, left, right):
            return op(_condition(left), operator, _condition(right))
        case Not(denied):
            return _not(_condition(denied))


def _not(condition: Node) -> Node:
    return {"type": "UnaryExpr", "operator": "!", "operand": condition}
