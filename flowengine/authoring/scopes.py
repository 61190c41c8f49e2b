"""One body while it is traced: each facet called in it becomes a step of a block.

A function's body is one scope, each lambda of a foreach, when or attempt a scope within
it. The current scope is the one that calls go to; with none, a facet is plain Python.
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
from flowengine.authoring.names import is_step_name
from flowengine.authoring.symbols import Facts, Reach, Symbol, expression_of, marked, symbols_in
from flowengine.errors import AuthoringError, NotJson, SymbolMisuse
from flowengine.program.expressions import references
from flowengine.program.nodes import (
    Argument,
    Call,
    Expression,
    FacetDeclaration,
    InputRef,
    Literal,
    Location,
    StepRef,
    StepStatement,
    YieldStatement,
)
from flowengine.program.standard import ITEMS, RESULT, STANDARD, wider


class Scope(Reach):
    """A block in the making."""

    def __init__(
        self,
        title: str,
        variables: Iterable[str],
        parent: Scope | None = None,
        *,
        because: str = "",
        items: Expression | None = None,
    ) -> None:
        super().__init__(title, parent, because)
        self.outer = parent
        self.variables = frozenset(variables)  #: parameters, or the one foreach variable
        self.items = items  #: what a foreach goes through; None for a function's body
        self.statements: list[StepStatement] = []
        self.step_names: dict[str, Location] = {}
        self._numbers: dict[str, int] = {}  #: the next number to try for a name
        self.callees: dict[str, Definition] = {} if parent is None else parent.callees
        #: what flowengine itself has to declare for the steps here
        self.standard: dict[str, FacetDeclaration] = {} if parent is None else parent.standard

    def call(
        self, definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
    ) -> Symbol:
        """Append a step that calls a facet; `name` is the author's for it, or empty."""
        location = user_location()
        arguments = self.arguments(definition, args, kwargs, location)
        step = self.step_name(definition.short_name, name, location)
        call = Call(definition.name, arguments)
        hint = definition.signature.result.hint
        return self.appended(StepStatement(step, call, location=location), hint)

    def arguments(
        self,
        definition: Definition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        location: Location,
    ) -> tuple[Argument, ...]:
        """What a facet is called with; the facet becomes a part of the program."""
        given, problems = definition.signature.bound(args, kwargs)
        arguments = []
        for parameter in definition.signature.parameters:
            if parameter.name in given:
                value = given[parameter.name]
                try:
                    expression = self.admitted(value, parameter.annotation, parameter.name)
                except pydantic.ValidationError as error:
                    problems.append(mismatch(parameter.name, parameter.annotation, value, error))
                except NotJson as error:
                    problems.append(str(error))
                else:
                    arguments.append(Argument(parameter.name, expression))
        if problems:
            raise AuthoringError(
                f"{location}: {definition.title} cannot be called so: {'; '.join(problems)}"
            )
        other = self.callees.setdefault(definition.name, definition)
        refuse_namesake(definition, other)
        return tuple(arguments)

    def call_standard(self, facet: str, arguments: Mapping[str, Any], hint: Any) -> Symbol:
        """Append a step that calls a facet of flowengine's own."""
        location = user_location()
        self.declare(facet, STANDARD[facet])
        given = tuple(Argument(name, self.admitted(value)) for name, value in arguments.items())
        step = self.step_name(facet.rpartition(".")[2], "", location)
        return self.appended(StepStatement(step, Call(facet, given), location=location), hint)

    def admitted(
        self, value: Any, annotation: Annotation | None = None, where: str = "the value"
    ) -> Expression:
        """The value as an expression of this body; raises for a symbol of another one.

        A value without symbols is known already: it is checked against its annotation
        now, so that a wrong constant is found at the first check and not in a run.
        """
        if isinstance(value, Iterator) and not isinstance(value, Symbol):
            value = list(value)
        every = list(symbols_in(value))
        for facts in every:
            if not self.within(facts.reach):
                raise facts.reach.escape(facts.label)
            self._refuse_hidden(facts)
        if every or annotation is None:
            return expression_of(value)
        return Literal(marked(annotation.write(value, "an argument", where)))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let the facets called meanwhile become steps of this block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self.over = True

    def declare(self, name: str, facet: FacetDeclaration) -> None:
        """Have the program declare a facet of flowengine's own; the wider of two stays."""
        self.standard[name] = wider(facet, self.standard.get(name, facet))

    def appended(self, statement: StepStatement, hint: Any = Any) -> Symbol:
        """Append a step; its result is the symbol."""
        self.statements.append(statement)
        return Symbol(StepRef((statement.name, RESULT)), self, f"step {statement.name!r}", hint)

    def yielded(self, target: str, result: Expression, at: Location) -> tuple[YieldStatement, ...]:
        """The one yield of a body that gives its result to the step it stands in."""
        return (YieldStatement(Call(target, (Argument(RESULT, result),)), at),)

    def _chain(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def variable(self, wanted: str) -> str:
        """The name for a foreach variable that hides no other."""
        return _unused(wanted, {ITEMS}.union(*(scope.variables for scope in self._chain())))

    def step_name(self, default: str, given: str, location: Location) -> str:
        """The author's name for a step, or the facet's own with a number behind it."""
        # Unique along the chain, not in this block alone: inside a lambda an outer step of
        # the same name may be in use, and the inner one would take its place unseen.
        if given and (at := self._taken(given)) is not None:
            raise AuthoringError(
                f"{location}: the step name {given!r} is taken by the step at {at}"
            )
        name = given or self._numbered(default)
        self.step_names[name] = location
        return name

    def _taken(self, name: str) -> Location | None:
        """Where the step of that name stands."""
        found = (scope.step_names.get(name) for scope in self._chain())
        return next((at for at in found if at is not None), None)

    def _numbered(self, name: str) -> str:
        """The name, with a number if it is taken; the search goes on where the last one ended."""
        if self._taken(name) is None:
            return name
        number = self._numbers.get(name, 2)
        while self._taken(f"{name}_{number}") is not None:
            number += 1
        self._numbers[name] = number + 1
        return f"{name}_{number}"

    def _refuse_hidden(self, facts: Facts) -> None:
        # The body of a foreach sees the list of its own step as `items`. A parameter of
        # that name is hidden by it, unless that list is the parameter.
        if not _reads_items(facts.expression):
            return
        for scope in self._chain():
            if scope.items is not None and scope.items != InputRef((ITEMS,)):
                raise SymbolMisuse(
                    f"{user_location()}: parameter {ITEMS!r} cannot be used inside {scope.title}, "
                    f"where {ITEMS!r} is the list it goes through; rename the parameter"
                )


_current: ContextVar[Scope | None] = ContextVar("flowengine_scope", default=None)


def current_scope() -> Scope | None:
    """The body being traced here, if any."""
    return _current.get()


def checked_step_name(name: object) -> str:
    """The name an author gave to a step; raises when a step path could not show it."""
    if not is_step_name(name):
        raise AuthoringError(f"{user_location()}: the step name {name!r} is not an identifier")
    return str(name)


def refuse_namesake(one: Definition, other: Definition) -> None:
    """Raise when two definitions of one program have one name and are not one function."""
    if one is not other and not one.replaces(other):
        raise AuthoringError(
            f"{one.title} and {other.title} have one name in one program; "
            'give one of them another with name="…"'
        )


def _unused(name: str, taken: Iterable[str]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


def _reads_items(expression: Expression) -> bool:
    every = references(expression)
    return any(isinstance(ref, InputRef) and ref.path[0] == ITEMS for ref in every)
