"""Symbols: placeholders for values that exist only in a run.

In a traced body, parameters and results of steps are symbols. Arithmetic,
comparison, fields and items build an expression. Every other operation needs the
value: it raises and names the construct to use. Only `repr` works, for debuggers;
`without_symbols` detects it in text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, NoReturn, cast

import pydantic

from flowengine.authoring.annotations import json_value
from flowengine.authoring.locations import user_location
from flowengine.authoring.refusals import REFUSALS, cure_for_condition
from flowengine.authoring.shapes import field_hint, fixed_items, item_hint, position_of
from flowengine.errors import AuthoringError, NotJson, SymbolMisuse
from flowengine.program import nodes

_MARK = "<flowengine symbol: "


class Visibility:
    """Where a symbol is usable: in its own body and in the bodies nested in it."""

    def __init__(self, title: str, parent: Visibility | None, reason: str = "") -> None:
        self.title = title  #: e.g. ``workflow 'shop.order' (shop.py:12)``
        self.parent = parent
        self.reason = reason  #: of a lambda: why its symbols are invalid outside it
        self.closed = False  #: the trace of its body has ended

    def sees(self, other: Visibility) -> bool:
        """Whether a symbol of `other` is usable here."""
        return self is other or (self.parent is not None and self.parent.sees(other))

    def escape_error(self, label: str) -> SymbolMisuse:
        """Return the error for a symbol of this body used outside it."""
        if self.parent is None:
            cure = "pass the value as an argument, or return it"
            return SymbolMisuse(
                f"{user_location()}: {label} escapes its function: it is a value of {self.title} "
                f"and undefined elsewhere; {cure}"
            )
        return SymbolMisuse(
            f"{user_location()}: {label} escapes its lambda: {self.reason}; return it from the "
            "lambda and use the result of the call that takes the lambda"
        )


class NoValue(Visibility):
    """The visibility of a symbol without value: every use raises."""

    def __init__(self, title: str, why: str) -> None:
        super().__init__(title, None)
        self.closed = True
        self._why = why

    def escape_error(self, label: str) -> SymbolMisuse:
        """Return the error for any use."""
        return SymbolMisuse(f"{user_location()}: {label} has no value: {self._why}")


@dataclass(frozen=True)
class SymbolInfo:
    """The contents of a symbol."""

    expression: nodes.Expression
    visibility: Visibility
    label: str  #: its name in errors: ``step 'fetch'``
    hint: Any = Any  #: the annotation of the value, where there is one


class Symbol:
    """A value of the run, unknown while the body is traced.

    It has no public attributes, because ``symbol.anything`` is a path. `info_of` returns
    its contents.
    """

    __slots__ = ("__info",)

    def __init__(
        self, expression: nodes.Expression, visibility: Visibility, label: str, hint: Any = Any
    ) -> None:
        object.__setattr__(self, "_Symbol__info", SymbolInfo(expression, visibility, label, hint))

    def __repr__(self) -> str:
        return f"{_MARK}{info_of(self).label}>"

    def __getattr__(self, name: str) -> Any:
        # Python, copy, IPython and numpy probe objects for such names; anything but
        # AttributeError would announce a protocol.
        if name.startswith("_"):
            raise AttributeError(f'{self!r} has no {name!r}; a field of that name is ["{name}"]')
        info = info_of(self)
        label, hint = f"field {name!r} of {info.label}", field_hint(info.hint, name)
        position = position_of(info.hint, name)
        match info.expression:
            case nodes.StepRef(path) if position is None:
                return Symbol(nodes.StepRef((*path, name)), info.visibility, label, hint)
            case nodes.InputRef(path) if position is None:
                return Symbol(nodes.InputRef((*path, name)), info.visibility, label, hint)
        key = nodes.Literal(name if position is None else position)
        return Symbol(nodes.Index(info.expression, key), info.visibility, label, hint)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            _refuse(self, "take a slice of", "write an event facet that returns the part")
        info = info_of(self)
        label, hint = f"an item of {info.label}", item_hint(info.hint, index)
        build = partial(nodes.Index, info.expression, expression_of(index))
        return combine((self, index), build, label, hint)

    def __bool__(self) -> NoReturn:
        _refuse(self, "branch on", cure_for_condition())

    def __iter__(self) -> Iterator[Any]:
        info = info_of(self)
        items = fixed_items(info.hint)
        if items is None:
            _refuse(
                self,
                "iterate over or unpack",
                "for each item use foreach(items, lambda item: …); take single "
                "items with [0], [1], or annotate the facet's result as tuple[…] and unpack it",
            )
        return iter([self[index] for index in range(len(items))])


def info_of(symbol: Symbol) -> SymbolInfo:
    """Return the contents of a symbol."""
    return cast(SymbolInfo, object.__getattribute__(symbol, "_Symbol__info"))


def symbols_in(value: Any) -> Iterator[SymbolInfo]:
    """Yield the symbols in a value, through lists, tuples, dicts, dataclasses and models."""
    if isinstance(value, Symbol):
        yield info_of(value)
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
        return dict(value)  # not model_dump, which would need the values of symbols
    return None


def expression_of(value: Any) -> nodes.Expression:
    """Convert a Python value to an expression: symbols by their expression, the rest literally."""
    match value:
        case Symbol():
            return info_of(value).expression
        case list() | tuple() if any(symbols_in(value)):
            return nodes.ArrayLiteral(tuple(expression_of(item) for item in value))
        case dict() if any(symbols_in(value)):
            keys = _json_constant(dict.fromkeys(value))
            items = zip(keys, value.values(), strict=True)
            return nodes.MapLiteral(tuple((key, expression_of(item)) for key, item in items))
    parts = _fields_of(value)
    if parts is not None and any(symbols_in(value)):
        return expression_of(parts)
    return nodes.Literal(without_symbols(_json_constant(value)))


def _json_constant(value: Any) -> nodes.Json:
    try:
        return json_value(value, "a value in a workflow")
    except NotJson as error:
        raise AuthoringError(f"{user_location()}: {error}") from None


def without_symbols(value: Any) -> Any:
    """Return the JSON value; raises if its text contains the repr of a symbol."""
    match value:
        case str() if _MARK in value:
            raise SymbolMisuse(
                f"{user_location()}: the text {value!r} holds the repr of a symbol, not the value "
                "of the run; join text with concat(...)"
            )
        case list():
            for item in value:
                without_symbols(item)
        case dict():
            for item in (*value, *value.values()):
                without_symbols(item)
    return value


def combine(
    operands: tuple[Any, ...], build: Callable[[], nodes.Expression], label: str, hint: Any = Any
) -> Any:
    """Build a symbol from others, with the visibility of the innermost."""
    every = list(symbols_in(operands))
    for info in every:
        if info.visibility.closed:
            raise info.visibility.escape_error(info.label)
    # All are open, so their bodies enclose the current line and are nested in each other.
    visibility = every[0].visibility
    for info in every[1:]:
        if info.visibility.sees(visibility):
            visibility = info.visibility
    return Symbol(build(), visibility, label, hint)


# --- Operators that build an expression ------------------------------------------------

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "mod": "%", "and": "&&", "or": "||",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])  # Python reflects these itself
_UNARY = {"neg": "-", "invert": "!"}


def _binary(operator: str, *, reflected: bool) -> Callable[[Symbol, Any], Any]:
    def operate(self: Symbol, other: Any) -> Any:
        left, right = (other, self) if reflected else (self, other)
        label = f"the value of `{_short(left)} {operator} {_short(right)}`"
        return combine(
            (left, right),
            lambda: nodes.Binary(operator, expression_of(left), expression_of(right)),
            label,
        )

    return operate


def _unary(operator: str) -> Callable[[Symbol], Any]:
    def operate(self: Symbol) -> Any:
        info = info_of(self)
        label = f"the value of `{operator}{_short(self)}`"
        return Symbol(nodes.Unary(operator, info.expression), info.visibility, label)

    return operate


def _short(value: Any) -> str:
    if not isinstance(value, Symbol):
        return repr(value) if len(repr(value)) < 30 else "…"
    match info_of(value).expression:
        case nodes.StepRef(path) | nodes.InputRef(path):
            return path[0]
    return "…"


# --- Operations that need the value, and raise -----------------------------------


def _refuse(symbol: Symbol, tried: str, cure: str) -> NoReturn:
    label = info_of(symbol).label
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
