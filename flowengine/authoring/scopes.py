"""The scope of a traced body: each facet called in it appends a step to its block.

A function's body is one scope, each lambda of a foreach, when or attempt a nested one.
Calls go to the current scope; without one, a facet is plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pydantic

from flowengine.authoring.annotations import Annotation, mismatch
from flowengine.authoring.definitions import Definition
from flowengine.authoring.locations import user_location
from flowengine.authoring.order import Order, after_nodes
from flowengine.authoring.symbols import (
    Symbol,
    SymbolInfo,
    Visibility,
    expression_of,
    symbols_in,
    without_symbols,
)
from flowengine.errors import AuthoringError, SymbolMisuse, ValueRefused
from flowengine.program import nodes
from flowengine.program.expressions import references
from flowengine.program.function_options import without_version
from flowengine.program.standard import ITEMS, RESULT, STANDARD, wider


class Scope(Visibility):
    """A block under construction."""

    def __init__(
        self,
        title: str,
        variables: Iterable[str],
        parent: Scope | None = None,
        *,
        reason: str = "",
        items: nodes.Expression | None = None,
    ) -> None:
        super().__init__(title, parent, reason)
        self.outer = parent
        self.variables = frozenset(variables)  #: parameters, or the one foreach variable
        self.items = items  #: the list of a foreach; None for a function's body
        self.statements: list[nodes.StepStatement] = []
        self.step_names: dict[str, nodes.Location] = {}
        self._numbers: dict[str, int] = {}  #: next suffix to try for a step name
        self.callees: dict[str, Definition] = {} if parent is None else parent.callees
        #: steps that their author declared to come after none
        self.unordered: set[str] = set() if parent is None else parent.unordered
        #: built-in facets that the program must declare
        self.standard: dict[str, nodes.FacetDeclaration] = {} if parent is None else parent.standard

    def call(
        self,
        definition: Definition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        order: Order | None = None,
        mixins: tuple[nodes.Mixin, ...] = (),
    ) -> Symbol:
        """Append a step that calls a facet; an empty `name` is derived from the facet."""
        location = user_location()
        arguments = self.arguments(definition, args, kwargs, location)
        step = self.step_name(without_version(definition.short_name), name, location)
        call = nodes.Call(definition.name, arguments, mixins)
        hint = definition.signature.result.hint
        if order == ():
            self.unordered.add(step)
        after = after_nodes(order, self)
        return self.append(nodes.StepStatement(step, call, location=location, after=after), hint)

    def arguments(
        self,
        definition: Definition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        location: nodes.Location,
    ) -> tuple[nodes.Argument, ...]:
        """Bind the arguments of a call and add its facet to the program."""
        given, problems = definition.signature.bound(args, kwargs)
        arguments = []
        for parameter in definition.signature.parameters:
            if parameter.name in given:
                value = given[parameter.name]
                try:
                    expression = self.to_expression(value, parameter.annotation, parameter.name)
                except pydantic.ValidationError as error:
                    problems.append(mismatch(parameter.name, parameter.annotation, value, error))
                except ValueRefused as error:
                    problems.append(str(error))
                else:
                    arguments.append(nodes.Argument(parameter.name, expression))
        if problems:
            raise AuthoringError(
                f"{location}: {definition.title} cannot take these arguments: {'; '.join(problems)}"
            )
        other = self.callees.setdefault(definition.name, definition)
        refuse_duplicate_name(definition, other)
        return tuple(arguments)

    def call_standard(
        self,
        facet: str,
        arguments: Mapping[str, Any],
        hint: Any,
        after: tuple[nodes.After, ...] = (),
    ) -> Symbol:
        """Append a step that calls a built-in facet."""
        location = user_location()
        self.declare(facet, STANDARD[facet])
        given = tuple(
            nodes.Argument(name, self.to_expression(value)) for name, value in arguments.items()
        )
        step = self.step_name(facet.rpartition(".")[2], "", location)
        call = nodes.Call(facet, given)
        statement = nodes.StepStatement(step, call, location=location, after=after)
        return self.append(statement, hint)

    def to_expression(
        self, value: Any, annotation: Annotation | None = None, where: str = "the value"
    ) -> nodes.Expression:
        """Convert a value to an expression of this body; raises for a foreign symbol.

        A value without symbols is a constant: validate it against its annotation now
        rather than in a run.
        """
        if isinstance(value, Iterator) and not isinstance(value, Symbol):
            value = list(value)
        every = list(symbols_in(value))
        for info in every:
            if not self.sees(info.visibility):
                raise info.visibility.escape_error(info.label)
            self._refuse_hidden(info)
        if every or annotation is None:
            return expression_of(value)
        written = annotation.write(value, "an argument", where, in_program=True)
        return nodes.Literal(without_symbols(written))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current scope, and close it at the end."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self.closed = True

    def declare(self, name: str, facet: nodes.FacetDeclaration) -> None:
        """Declare a built-in facet in the program; the wider of two declarations wins."""
        self.standard[name] = wider(facet, self.standard.get(name, facet))

    def append(self, statement: nodes.StepStatement, hint: Any = Any) -> Symbol:
        """Append a step; return the symbol of its result."""
        self.statements.append(statement)
        return Symbol(
            nodes.StepRef((statement.name, RESULT)), self, f"step {statement.name!r}", hint
        )

    def result_yield(
        self, target: str, result: nodes.Expression, at: nodes.Location
    ) -> tuple[nodes.YieldStatement, ...]:
        """Return the yield that passes a body's result to its enclosing step."""
        return (nodes.YieldStatement(nodes.Call(target, (nodes.Argument(RESULT, result),)), at),)

    def _enclosing(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def variable(self, wanted: str) -> str:
        """Return a name for a foreach variable that shadows no other."""
        return _unused(wanted, {ITEMS}.union(*(scope.variables for scope in self._enclosing())))

    def step_name(self, default: str, given: str, location: nodes.Location) -> str:
        """Reserve the given name for a step, or the facet's name with a numeric suffix."""
        # Invariant: unique in all enclosing blocks, because an inner step would silently
        # shadow an outer one of the same name.
        if given and (at := self._step_location(given)) is not None:
            raise AuthoringError(
                f"{location}: the step name {given!r} is already used by the step at {at}"
            )
        name = given or self._unused_step_name(default)
        self.step_names[name] = location
        return name

    def _step_location(self, name: str) -> nodes.Location | None:
        """Return the location of the step with that name."""
        locations = (scope.step_names.get(name) for scope in self._enclosing())
        return next((at for at in locations if at is not None), None)

    def _unused_step_name(self, name: str) -> str:
        """Return the name, with the next free suffix if it is used."""
        if self._step_location(name) is None:
            return name
        number = self._numbers.get(name, 2)
        while self._step_location(f"{name}_{number}") is not None:
            number += 1
        self._numbers[name] = number + 1
        return f"{name}_{number}"

    def _refuse_hidden(self, info: SymbolInfo) -> None:
        # In the body of a foreach, `items` is the list of its step. It shadows a parameter of
        # that name, unless that list is the parameter.
        read = references(info.expression)
        if not any(isinstance(ref, nodes.InputRef) and ref.path[0] == ITEMS for ref in read):
            return
        for scope in self._enclosing():
            if scope.items is not None and scope.items != nodes.InputRef((ITEMS,)):
                raise SymbolMisuse(
                    f"{user_location()}: parameter {ITEMS!r} cannot be used inside {scope.title}, "
                    f"where {ITEMS!r} is the list of the loop; rename the parameter"
                )


_current: ContextVar[Scope | None] = ContextVar("flowengine_scope", default=None)


def current_scope() -> Scope | None:
    """Return the scope being traced, if any."""
    return _current.get()


def checked_step_name(name: object) -> str:
    """Return a given step name; raises if it is not valid in a step path."""
    if not isinstance(name, str) or not name.isidentifier():
        raise AuthoringError(f"{user_location()}: the step name {name!r} is not an identifier")
    return name


def refuse_duplicate_name(one: Definition, other: Definition) -> None:
    """Raise if two functions of one program have the same name."""
    if one is not other and not one.replaces(other):
        raise AuthoringError(
            f"{one.title} and {other.title} have the same name in one program; "
            'rename one of them with name="…"'
        )


def _unused(name: str, taken: Iterable[str]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"
