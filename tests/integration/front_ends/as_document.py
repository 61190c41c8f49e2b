"""Write a description as a YAML document, and draw descriptions that a document can be.

A document has calls of event facets and their order; it has no loops, choices and attempts.
"""

from __future__ import annotations

import json
import random
from typing import Any

from flowengine.documents import compile_document
from flowengine.program import nodes
from flowengine.program.serializer import write_program
from tests.integration.front_ends.descriptions import (
    DEFAULT_BY,
    Body,
    Call,
    Description,
    Input,
    Listed,
    Number,
    Operation,
    Result,
    Value,
)

_BY = nodes.Literal(DEFAULT_BY)
_PARAMETERS = {
    "w.act": (nodes.Field("x", "Long"), nodes.Field("by", "Long", _BY)),
    "w.add": (nodes.Field("a", "Long"), nodes.Field("b", "Long")),
    "w.risk": (nodes.Field("x", "Long"),),
    "w.total": (nodes.Field("xs", nodes.ArrayType("Long")),),
}


def drawn(seed: int, count: int) -> Description:
    """Return a workflow of calls that use the input and the results of earlier calls."""
    chance = random.Random(seed)
    done: list[str] = []

    def value(depth: int = 2) -> Value:
        kinds: list[Value] = [Number(chance.randint(-4, 9)), Input("n")]
        if done:
            kinds += [Result(chance.choice(done))] * 3
        if depth:
            kinds.append(Operation(chance.choice("+-*"), value(depth - 1), value(depth - 1)))
        return chance.choice(kinds)

    statements = []
    for number in range(count):
        facet = chance.choice(["act", "act", "add", "risk", "total"])
        arguments: dict[str, Value] = {"x": value()}
        if facet == "add":
            arguments = {"a": value(), "b": value()}
        elif facet == "total":
            arguments = {"xs": Listed(tuple(value() for _ in range(chance.randint(0, 3))))}
        elif facet == "act" and chance.random() < 0.5:
            arguments["by"] = value()
        statements.append(Call(f"s{number}", facet, arguments))
        done.append(f"s{number}")
    return Description((), Body(tuple(statements), Listed((value(), value()))))


def document(description: Description) -> str:
    """Return the document. JSON is YAML; half of the tasks are written in its own style."""
    lines = ["inputs: {n: integer}", "tasks:"]
    for number, call in enumerate(description.body.statements):
        assert isinstance(call, Call)
        given = {name: _value(each) for name, each in call.arguments.items()}
        task = {"call": f"w.{call.facet}", "with": given}
        if number % 2:
            lines.append(f"  {call.name}: {json.dumps(task)}")
        else:
            lines += [f"  {call.name}:", f"    call: w.{call.facet}", "    with:"]
            lines += [f"      {name}: {json.dumps(each)}" for name, each in given.items()]
    return "\n".join([*lines, f"result: {json.dumps(_value(description.body.value))}", ""])


def program(text: str) -> Any:
    """Compile the document; the event facets are those of the other front ends."""

    def declared(name: str) -> nodes.FacetDeclaration:
        return nodes.FacetDeclaration(
            nodes.FacetKind.EVENT,
            name.removeprefix("w."),
            params=_PARAMETERS[name],
            returns=(nodes.Field("result", "Long"),),
        )

    return write_program(compile_document(text, "w.Work", find_facet=declared).program)


def _value(value: Value) -> Any:
    if isinstance(value, Number):
        return value.value
    if isinstance(value, Listed):
        return [_value(element) for element in value.elements]
    return f"${{{_expression(value)}}}"


def _expression(value: Value) -> str:
    match value:
        case Number(number):
            return f"({number})"
        case Input(name):
            return f"inputs.{name}"
        case Result(name):
            return f"tasks.{name}.result"
        case Operation(operator, left, right):
            return f"({_expression(left)} {operator} {_expression(right)})"
    raise AssertionError(value)
