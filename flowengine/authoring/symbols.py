"""Symbols: stand-ins for values that a run will have and the trace has not.

While a workflow's body is traced, its parameters and the results of its steps
are symbols. What a program can compute (arithmetic, comparison, fields, items)
builds an expression. Everything else Python may ask for needs the value itself;
it raises, says so, and names the construct to use. Nothing but `repr` gives a
quiet answer: it is what debuggers call, and `marked` finds it if it leaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, NoReturn, cast

import pydantic

from flowengine.authoring.annotations import json_value
from flowengine.authoring.control_flow import cure_for_deciding
from flowengine.authoring.locations import user_location
from flowengine.authoring.refusals import REFUSALS
from flowengine.authoring.shapes import field_hint, fixed_items, item_hint, position_of
from flowengine.errors import AuthoringError, NotJson, SymbolMisuse
from flowengine.program.nodes import (
    ArrayLiteral,
    Binary,
    Expression,
    Index,
    InputRef,
    Json,
    Literal,
    MapLiteral,
    StepRef,
    Unary,
)

_MARK = "<flowengine symbol: "


class Reach:
    """How far a symbol may be used: the body it was made in, and the bodies within that one."""

    def __init__(self, title: str, parent: Reach | None, because: str = "") -> None:
        self.title = title  #: e.g. ``workflow 'shop.order' (shop.py:12)``
        self.parent = parent
        self.because = because  #: of a lambda: why its symbols mean nothing outside it
        self.over = False  #: its body has ended: whatever comes now is outside

    def within(self, other: Reach) -> bool:
        """Whether a symbol of `other` may be used here."""
        return self is other or (self.parent is not None and self.parent.within(other))

    def escape(self, label: str) -> SymbolMisuse:
        """The error for a symbol of this body that was used outside it."""
        if self.parent is None:
            cure = "pass the value as an argument, or return it"
            return SymbolMisuse(
                f"{user_location()}: {label} escapes its function: it is a value of {self.title} "
                f"and means nothing elsewhere; {cure}"
            )
        return SymbolMisuse(
            f"{user_location()}: {label} escapes its lambda: {self.because}; return it from the "
            "lambda and use what the call that takes the lambda gives"
        )


class Nowhere(Reach):
    """The reach of a symbol that has no value at all: whatever uses it is told so."""

    def __init__(self, title: str, why: str) -> None:
        super().__init__(title, None)
        self.over = True
        self._why = why

    def escape(self, label: str) -> SymbolMisuse:
        """The error for any use."""
        return SymbolMisuse(f"{user_location()}: {label} has no value: {self._why}")


@dataclass(frozen=True)
class Facts:
    """What a symbol knows of itself."""

    expression: Expression
    reach: Reach
    label: str  #: how an error names it: ``step 'fetch'``
    hint: Any = Any  #: the annotation of the value, where there is one


class Symbol:
    """A value of the run, unknown while the body is traced.

    It has no attribute that an author could mistake for a field of the value:
    ``symbol.anything`` is a path. `facts_of` looks inside.
    """

    __slots__ = ("__facts",)

    def __init__(self, expression: Expression, reach: Reach, label: str, hint: Any = Any) -> None:
        object.__setattr__(self, "_Symbol__facts", Facts(expression, reach, label, hint))

    def __repr__(self) -> str:
        return f"{_MARK}{facts_of(self).label}>"

    def __getattr__(self, name: str) -> Any:
        # Python, copy, IPython and numpy probe objects for such names and take
        # AttributeError for "no"; an answer would be taken for a capability.
        if name.startswith("_"):
            raise AttributeError(f'{self!r} has no {name!r}; a field of that name is ["{name}"]')
        facts = facts_of(self)
        label, hint = f"field {name!r} of {facts.label}", field_hint(facts.hint, name)
        position = position_of(facts.hint, name)
        match facts.expression:
            case StepRef(path) if position is None:
                return Symbol(StepRef((*path, name)), facts.reach, label, hint)
            case InputRef(path) if position is None:
                return Symbol(InputRef((*path, name)), facts.reach, label, hint)
        key = Literal(name if position is None else position)
        return Symbol(Index(facts.expression, key), facts.reach, label, hint)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            _refuse(self, "take a slice of", "write an event facet that returns the part")
        facts = facts_of(self)
        label, hint = f"an item of {facts.label}", item_hint(facts.hint, index)
        build = partial(Index, facts.expression, expression_of(index))
        return combined((self, index), build, label, hint)

    def __bool__(self) -> NoReturn:
        _refuse(self, "decide by", cure_for_deciding())

    def __iter__(self) -> Iterator[Any]:
        facts = facts_of(self)
        items = fixed_items(facts.hint)
        if items is None:
            _refuse(
                self,
                "iterate over or unpack",
                "to do something for each item use foreach(items, lambda item: …); take single "
                "items with [0], [1], or annotate the facet's result as tuple[…] and unpack it",
            )
        return iter([self[place] for place in range(len(items))])


def facts_of(symbol: Symbol) -> Facts:
    """The expression, reach and label of a symbol."""
    return cast(Facts, object.__getattribute__(symbol, "_Symbol__facts"))


def symbols_in(value: Any) -> Iterator[Facts]:
    """Every symbol in a value, through lists, tuples, dicts, dataclasses and models."""
    if isinstance(value, Symbol):
        yield facts_of(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from symbols_in(item)
    elif isinstance(value, dict):
        yield from symbols_in(list(value.values()))
    elif (parts := _fields_of(value)) is not None:
        yield from symbols_in(list(parts.values()))


def _fields_of(value: Any) -> dict[str, Any] | None:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, pydantic.BaseModel):
        return dict(value)  # not dumped: a symbol would be asked for its value
    return None


def expression_of(value: Any) -> Expression:
    """A Python value as an expression: symbols as what they stand for, the rest as literals."""
    match value:
        case Symbol():
            return facts_of(value).expression
        case list() | tuple() if any(symbols_in(value)):
            return ArrayLiteral(tuple(expression_of(item) for item in value))
        case dict() if any(symbols_in(value)):
            keys = _known(dict.fromkeys(value))
            items = zip(keys, value.values(), strict=True)
            return MapLiteral(tuple((key, expression_of(item)) for key, item in items))
    parts = _fields_of(value)
    if parts is not None and any(symbols_in(value)):
        return expression_of(parts)
    return Literal(marked(_known(value)))


def _known(value: Any) -> Json:
    try:
        return json_value(value, "a value in a workflow")
    except NotJson as error:
        raise AuthoringError(f"{user_location()}: {error}") from None


def marked(value: Any) -> Any:
    """The JSON value itself; raises when the repr of a symbol has leaked into its text."""
    match value:
        case str() if _MARK in value:
            raise SymbolMisuse(
                f"{user_location()}: the text {value!r} holds the repr of a symbol, not the value "
                "of the run; join text with concat(...)"
            )
        case list():
            for item in value:
                marked(item)
        case dict():
            for item in (*value, *value.values()):
                marked(item)
    return value


def combined(
    operands: tuple[Any, ...], build: Callable[[], Expression], label: str, hint: Any = Any
) -> Any:
    """A symbol built of others; it reaches as far as the nearest-bound of them."""
    every = list(symbols_in(operands))
    for facts in every:
        if facts.reach.over:
            raise facts.reach.escape(facts.label)
    # None is over, so all belong to bodies that enclose the line being traced, one
    # within the other.
    reach = every[0].reach
    for facts in every[1:]:
        if facts.reach.within(reach):
            reach = facts.reach
    return Symbol(build(), reach, label, hint)


# --- What builds an expression ------------------------------------------------

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "mod": "%", "and": "&&", "or": "||",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])  # Python mirrors these by itself
_UNARY = {"neg": "-", "invert": "!"}


def _binary(operator: str, *, reflected: bool) -> Callable[[Symbol, Any], Any]:
    def operate(self: Symbol, other: Any) -> Any:
        left, right = (other, self) if reflected else (self, other)
        label = f"the value of `{_short(left)} {operator} {_short(right)}`"
        return combined(
            (left, right),
            lambda: Binary(operator, expression_of(left), expression_of(right)),
            label,
        )

    return operate


def _unary(operator: str) -> Callable[[Symbol], Any]:
    def operate(self: Symbol) -> Any:
        facts = facts_of(self)
        label = f"the value of `{operator}{_short(self)}`"
        return Symbol(Unary(operator, facts.expression), facts.reach, label)

    return operate


def _short(value: Any) -> str:
    if not isinstance(value, Symbol):
        return repr(value) if len(repr(value)) < 30 else "…"
    match facts_of(value).expression:
        case StepRef(path) | InputRef(path):
            return path[0]
    return "…"


# --- What needs the value itself, and raises -----------------------------------


def _refuse(symbol: Symbol, tried: str, cure: str) -> NoReturn:
    label = facts_of(symbol).label
    raise SymbolMisuse(
        f"{user_location()}: cannot {tried} {label}: it has no value until the workflow "
        f"runs; {cure}"
    )


def _refusal(tried: str, cure: str) -> Callable[..., NoReturn]:
    def refuse(self: Symbol, *_args: Any, **_kwargs: Any) -> NoReturn:
        _refuse(self, tried, cure)

    return refuse


for _name, _operator in _BINARY.items():
    setattr(Symbol, f"__{_name}__", _binary(_operator, reflected=False))
    if _name not in _COMPARISONS:
        setattr(Symbol, f"__r{_name}__", _binary(_operator, reflected=True))
for _name, _operator in _UNARY.items():
    setattr(Symbol, f"__{_name}__", _unary(_operator))
for _name, (_tried, _cure) in REFUSALS.items():
    setattr(Symbol, f"__{_name}__", _refusal(_tried, _cure))
