"""Write a description as a Python module of decorated functions, and trace it."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator
from typing import Any

from flowengine.program import write_program
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
from tests.registries import empty_registry

_FILE = "described.py"
_HEAD = f"""
from flowengine import and_, attempt, event_facet, facet, foreach, not_, or_, when, workflow

@event_facet(name="w.act")
def act(x: int, by: int = {DEFAULT_BY}) -> int: ...

@event_facet(name="w.add")
def add(a: int, b: int) -> int: ...

@event_facet(name="w.risk")
def risk(x: int) -> int: ...

@event_facet(name="w.total")
def total(xs: list[int]) -> int: ...

@event_facet(name="w.show")
def show(text: str) -> int: ...
"""


def source(description: Description) -> str:
    """Return the source of the module."""
    lines = [_HEAD]
    for facet in description.facets:
        kind = "workflow" if facet.is_workflow else "facet"
        lines += ["", f'@{kind}(name="w.{facet.name}")']
        lines += _function(facet.name, [f"{p}: int" for p in facet.parameters], facet.body, "int")
    lines += ["", '@workflow(name="w.Work")']
    lines += _function("work", ["n: int"], description.body, "list")
    return "\n".join(lines) + "\n"


def trace_module(text: str) -> Any:
    """Return the program of the module's workflow."""
    # The linter needs the source.
    linecache.cache[_FILE] = (len(text), None, text.splitlines(keepends=True), _FILE)
    module: dict[str, Any] = {"__name__": "described"}
    with empty_registry():
        exec(compile(text, _FILE, "exec"), module)
        return write_program(module["work"].program())


def _function(name: str, parameters: Iterable[str], body: Body, returns: str = "") -> list[str]:
    arrow = f" -> {returns}" if returns else ""
    inner = [line for statement in body.statements for line in _statement(statement)]
    lines = [*inner, f"return {_value(body.value)}"]
    return [f"def {name}({', '.join(parameters)}){arrow}:", *_indented(lines)]


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _statement(statement: Statement) -> list[str]:
    name = statement.name
    match statement:
        case Call(_, facet, arguments):
            given = ", ".join(f"{p}={_value(value)}" for p, value in arguments.items())
            return [f'{name} = {facet}.named("{name}")({given})']
        case Loop():
            options = [f'name="{name}"']
            if statement.limit is not None:
                options.append(f"limit={_value(statement.limit)}")
            if statement.collects:
                options.append("collect_errors=True")
            return [
                *_function(f"{name}_body", [statement.variable], statement.body),
                f"{name} = foreach({_value(statement.items)}, {name}_body, {', '.join(options)})",
            ]
        case Choice():
            lines = []
            for number, (_, body) in enumerate(statement.cases):
                lines += _function(f"{name}_case{number}", [], body)
            lines += _function(f"{name}_otherwise", [], statement.otherwise)
            cases = ", ".join(
                f"({_condition(condition)}, {name}_case{number})"
                for number, (condition, _) in enumerate(statement.cases)
            )
            call = f'{name} = when({cases}, otherwise={name}_otherwise, name="{name}")'
            return [*lines, call]
        case Attempt():
            return _attempt(statement)


def _attempt(statement: Attempt) -> list[str]:
    name = statement.name
    lines = _function(f"{name}_body", [], statement.body)
    handlers = {}
    for number, (kind, body) in enumerate(statement.handlers):
        handler = f"{name}_caught{number}"
        first, *rest = _function(handler, ["error"], body)
        message = f'    show.named("{name}_shown")(text=error.{statement.shows})'
        lines += [first, *([message] if statement.shows else ()), *rest]
        handlers["Exception" if kind is None else f'"{kind}"'] = handler
    options = [f'name="{name}"']
    if handlers.keys() == {"Exception"}:
        options.append(f"catch={handlers['Exception']}")
    elif handlers:
        listed = ", ".join(f"{kind}: {handler}" for kind, handler in handlers.items())
        options.append(f"catch={{{listed}}}")
    if statement.always is not None:
        lines += _function(f"{name}_always", [], statement.always)
        options.append(f"always={name}_always")
    return [*lines, f"{name} = attempt({name}_body, {', '.join(options)})"]


def _value(value: Value) -> str:
    match value:
        case Number(number):
            return str(number)
        case Input(name) | Result(name):
            return name
        case Results(name, collects):
            return f"{name}.results" if collects else name
        case Errors(name):
            return f"{name}.errors"
        case Operation(operator, left, right):
            return f"({_value(left)} {operator} {_value(right)})"
        case Item(of, index):
            return f"{_value(of)}[{_value(index)}]"
        case Listed(elements):
            return f"[{', '.join(map(_value, elements))}]"


_FUNCTIONS = {"&&": "and_", "||": "or_"}


def _condition(condition: Condition) -> str:
    match condition:
        case Compared(operator, left, right):
            return f"{_value(left)} {operator} {_value(right)}"
        case Joined(operator, left, right):
            return f"{_FUNCTIONS[operator]}({_condition(left)}, {_condition(right)})"
        case Not(denied):
            return f"not_({_condition(denied)})"
