"""Random descriptions of workflows.

They may divide by zero and index out of range, so that expressions fail too. A description is
generated from a seed and a size: Hypothesis alone would draw mostly trivial ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from tests.integration.front_ends.descriptions import (
    EVENTS,
    Attempt,
    Body,
    Call,
    Choice,
    Compared,
    Condition,
    Description,
    Errors,
    Facet,
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

#: A facet that calls itself, until its number is spent. A large number is not counted down.
_SPENT = Joined("||", Compared("<=", Input("a"), Number(0)), Compared(">", Input("a"), Number(20)))
_COUNTDOWN = Facet(
    "countdown",
    ("a",),
    Body(
        (
            Choice(
                "more",
                ((_SPENT, Body((), Input("a"))),),
                Body(
                    (
                        Call("once", "act", {"x": Input("a")}),
                        Call("again", "countdown", {"a": Operation("-", Input("a"), Number(5))}),
                    ),
                    Operation("+", Result("once"), Result("again")),
                ),
            ),
        ),
        Result("more"),
    ),
)


@dataclass
class _Visible:
    """The values visible at one place."""

    numbers: list[Value]
    lists: list[Results] = field(default_factory=list)
    errors: list[Errors] = field(default_factory=list)

    def inner(self, *more: Value) -> _Visible:
        return _Visible([*self.numbers, *more], list(self.lists), list(self.errors))


def generate(seed: int, size: int, for_text: bool) -> Description:
    """Generate a description with about `size` statements; `for_text`: one that can be AFL text."""
    return _Generator(Random(seed), size, for_text).description()


class _Generator:
    def __init__(self, random: Random, size: int, for_text: bool) -> None:
        self._random, self._size, self._left = random, size, size
        self._for_text = for_text
        self._counter = count(1)
        self._facets: list[Facet] = []

    def description(self) -> Description:
        self._facets += self._random.choice([[], [], [_COUNTDOWN]])
        for number in range(self._random.choice([0, 0, 1, 2])):
            parameters = ("a", "b")[: self._random.randint(1, 2)]
            body = self._body(_Visible([Input(name) for name in parameters]), 2)
            is_workflow = self._random.random() < 0.3
            self._facets.append(Facet(f"part{number + 1}", parameters, body, is_workflow))
        self._left = self._size
        names = _Visible([Input("n")])
        statements: list[Statement] = []
        while self._left > 0:
            statements.append(self._statement(names, 3))
        numbers = (
            *self._random.sample(names.numbers, min(3, len(names.numbers))),
            self._value(names),
        )
        value = Listed((*numbers, *self._some_of(names.lists), *self._some_of(names.errors)))
        return Description(tuple(self._facets), Body(tuple(statements), value))

    def _some_of(self, found: list[Results] | list[Errors]) -> list[Value]:
        return [value for value in found if self._random.random() < 0.6]

    def _body(self, names: _Visible, depth: int, *first: str) -> Body:
        """Return a body; `first` names its first event facets."""
        inner = names.inner()
        statements: list[Statement] = []
        for facet in first:
            parameters = {p: self._value(inner) for p in EVENTS[facet]}
            statements.append(Call(f"s{next(self._counter)}", facet, parameters))
            inner.numbers.append(Result(statements[-1].name))
        statements += [self._statement(inner, depth) for _ in range(self._random.randint(0, 2))]
        return Body(tuple(statements), self._value(inner))

    def _statement(self, names: _Visible, depth: int) -> Statement:
        self._left -= 1
        composed: list[Callable[[str, _Visible, int], Statement]] = [
            self._loop,
            self._choice,
            self._attempt,
        ]
        name = f"s{next(self._counter)}"
        if depth == 0 or self._left < 0 or self._random.random() < 0.5:
            made: Statement = self._call(name, names)
        else:
            made = self._random.choice(composed)(name, names, depth - 1)
        if isinstance(made, Loop):
            names.lists.append(Results(name, made.collects))
            names.errors += [Errors(name)] * made.collects
        else:
            names.numbers.append(Result(name))
        return made

    def _call(self, name: str, names: _Visible) -> Call:
        facets = {facet.name: facet.parameters for facet in self._facets}
        found = [*("act", "act", "add"), *facets, *facets, *(["total"] if names.lists else [])]
        facet = self._random.choice(found)
        if facet == "total":
            return Call(name, facet, {"xs": self._random.choice(names.lists)})
        parameters = {**EVENTS, **facets}[facet]
        if facet == "act" and self._random.random() < 0.7:
            parameters = ("x",)
        return Call(name, facet, {p: self._value(names) for p in parameters})

    def _loop(self, name: str, names: _Visible, depth: int) -> Loop:
        variable = f"i{next(self._counter)}"
        items: Listed | Results = Listed(
            tuple(self._value(names) for _ in range(self._random.choice([0, 1, 2, 3, 3])))
        )
        if names.lists and self._random.random() < 0.4:
            items = self._random.choice(names.lists)
        limits: list[Value | None] = [None, None, Number(1), Number(2)]
        if not self._for_text:
            limits.append(self._earlier_value(names))
        return Loop(
            name,
            variable,
            items,
            self._body(names.inner(Input(variable)), depth),
            self._random.choice(limits),
            not self._for_text and self._random.random() < 0.5,
        )

    def _choice(self, name: str, names: _Visible, depth: int) -> Choice:
        cases = tuple(
            (self._condition(names, 2), self._body(names, depth))
            for _ in range(self._random.randint(1, 3))
        )
        return Choice(name, cases, self._body(names, depth))

    def _attempt(self, name: str, names: _Visible, depth: int) -> Attempt:
        kinds: list[str | None] = self._random.choice(
            [[None], [None], ["Odd"], ["Refused", "Odd"], ["Odd", None]]
        )
        always = not self._for_text and self._random.random() < 0.4
        if always and self._random.random() < 0.3:
            kinds = []
        return Attempt(
            name,
            self._body(names, depth, "risk"),
            tuple((kind, self._body(names, depth)) for kind in kinds),
            self._random.choice([None, "message", "type", "path"]),
            self._body(names, depth) if always else None,
        )

    def _value(self, names: _Visible, depth: int = 2) -> Value:
        roll = self._random.random()
        if roll < 0.15:
            return Number(self._random.randint(-3, 9))
        if roll < 0.25 and names.lists:
            return Item(
                self._random.choice(names.lists), Number(self._random.choice([0, 0, -1, 1, -2]))
            )
        if roll < 0.65 or not depth:
            return self._earlier_value(names)
        # Python would fold two constants, or raise, before anything runs.
        operator = self._random.choice("+++--**%")
        return Operation(operator, self._earlier_value(names), self._value(names, depth - 1))

    def _earlier_value(self, names: _Visible) -> Value:
        """Return a value of the run, more often a late one, which makes chains."""
        return self._random.choice([*names.numbers, *names.numbers[-2:]])

    def _condition(self, names: _Visible, depth: int) -> Condition:
        roll = self._random.random()
        if not depth or roll < 0.6:
            operator = self._random.choice(["==", "!=", "<", "<=", ">", ">="])
            return Compared(operator, self._earlier_value(names), self._value(names, 1))
        if roll < 0.7:
            return Not(self._condition(names, depth - 1))
        both = self._condition(names, depth - 1), self._condition(names, depth - 1)
        return Joined(self._random.choice(["&&", "||"]), *both)
