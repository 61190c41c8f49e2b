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
from typing import Any, NoReturn, cast

from flowengine.authoring.annotations import json_value
from flowengine.authoring.locations import user_location
from flowengine.errors import SymbolMisuse
from flowengine.program.nodes import (
    ArrayLiteral,
    Binary,
    Concat,
    Expression,
    Index,
    InputRef,
    Literal,
    MapLiteral,
    StepRef,
    Unary,
)

_MARK = "<flowengine symbol: "


class Reach:
    """How far a symbol may be used: the body it was made in, and the bodies within that one."""

    def __init__(self, title: str, parent: Reach | None) -> None:
        self.title = title  #: e.g. ``workflow 'shop.order' (shop.py:12)``
        self.parent = parent

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
            f"{user_location()}: {label} escapes its lambda: it has another value for each item of "
            f"{self.title}; return it from the lambda and use the list that foreach(...) gives"
        )


@dataclass(frozen=True)
class Facts:
    """What a symbol knows of itself."""

    expression: Expression
    reach: Reach
    label: str  #: how an error names it: ``step 'fetch'``


class Symbol:
    """A value of the run, unknown while the body is traced.

    It has no attribute that an author could mistake for a field of the value:
    ``symbol.anything`` is a path. `facts_of` looks inside.
    """

    __slots__ = ("__facts",)

    def __init__(self, expression: Expression, reach: Reach, label: str) -> None:
        object.__setattr__(self, "_Symbol__facts", Facts(expression, reach, label))

    def __repr__(self) -> str:
        return f"{_MARK}{facts_of(self).label}>"

    def __getattr__(self, name: str) -> Any:
        # Python, copy, IPython and numpy probe objects for such names and take
        # AttributeError for "no"; an answer would be taken for a capability.
        if name.startswith("_"):
            raise AttributeError(f'{self!r} has no {name!r}; a field of that name is ["{name}"]')
        facts = facts_of(self)
        label = f"field {name!r} of {facts.label}"
        match facts.expression:
            case StepRef(path):
                return Symbol(StepRef((*path, name)), facts.reach, label)
            case InputRef(path):
                return Symbol(InputRef((*path, name)), facts.reach, label)
        return Symbol(Index(facts.expression, Literal(name)), facts.reach, label)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            _refuse(self, "take a slice of", "write an event facet that returns the part")
        label = f"an item of {facts_of(self).label}"
        target = facts_of(self).expression
        return combined((self, index), lambda: Index(target, expression_of(index)), label)


def facts_of(symbol: Symbol) -> Facts:
    """The expression, reach and label of a symbol."""
    return cast(Facts, object.__getattribute__(symbol, "_Symbol__facts"))


def symbols_in(value: Any) -> Iterator[Facts]:
    """Every symbol in a value, through lists, tuples, dicts and dataclasses."""
    if isinstance(value, Symbol):
        yield facts_of(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from symbols_in(item)
    elif isinstance(value, dict):
        yield from symbols_in(list(value.values()))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from symbols_in([getattr(value, field.name) for field in fields(value)])


def expression_of(value: Any) -> Expression:
    """A Python value as an expression: symbols as what they stand for, the rest as literals."""
    match value:
        case Symbol():
            return facts_of(value).expression
        case list() | tuple() if any(symbols_in(value)):
            return ArrayLiteral(tuple(expression_of(item) for item in value))
        case dict() if any(symbols_in(value)):
            entries = json_value(dict.fromkeys(value), "a map in a workflow", "the map")
            items = zip(entries, value.values(), strict=True)
            return MapLiteral(tuple((key, expression_of(item)) for key, item in items))
    if is_dataclass(value) and not isinstance(value, type) and any(symbols_in(value)):
        return expression_of({field.name: getattr(value, field.name) for field in fields(value)})
    return Literal(marked(json_value(value, "a value in a workflow", "the value")))


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


def combined(operands: tuple[Any, ...], build: Callable[[], Expression], label: str) -> Any:
    """A symbol built of others; it reaches as far as the nearest-bound of them."""
    every = list(symbols_in(operands))
    reach = every[0].reach
    for facts in every[1:]:
        if facts.reach.within(reach):
            reach = facts.reach
        elif not reach.within(facts.reach):
            raise facts.reach.escape(facts.label)
    return Symbol(build(), reach, label)


def contains(container: Any, item: Any) -> bool:
    """Whether a list, text or map holds an item: ``in`` for values of the run."""
    if not any(symbols_in((container, item))):
        return item in container
    label = "the answer of contains(...)"
    symbol = combined(
        (container, item),
        lambda: Binary("contains", expression_of(container), expression_of(item)),
        label,
    )
    return cast(bool, symbol)


def concat(*parts: Any) -> str:
    """Join values into one text: an f-string for values of the run; null adds nothing."""
    if not any(symbols_in(parts)):
        return "".join("" if part is None else str(part) for part in parts)
    symbol = combined(
        parts, lambda: Concat(tuple(expression_of(part) for part in parts)), "text of concat(...)"
    )
    return cast(str, symbol)


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

_IN_A_FACET = "that is work for an event facet: @event_facet def …, called with this value"
_LOOP = "to do something for each item use foreach(items, lambda item: …)"
_TEXT = "join text with concat(…), or build it in an event facet"
_OPERATOR = "the operators of a program are + - * / % == != < <= > >= & | ~; " + _IN_A_FACET
_FIXED = "a value of the run is never changed in place; make a new one in an event facet"
_KEPT = "pass it to a facet or return it; the run keeps the value"

#: dunder → what the author tried, and what to write instead
REFUSALS: dict[str, tuple[str, str]] = {
    "bool": (
        "decide by",
        "a branch on a value of the run is not a Python `if`, `and`, `or`, `not` or `a < b < c`; "
        "combine conditions with & | ~, and take the decision inside an event facet "
        "(`when(...)` comes in a later release)",
    ),
    "iter": ("iterate over or unpack", f"{_LOOP}; take single items with [0], [1]"),
    "next": ("take the next item of", _LOOP),
    "reversed": ("reverse", _IN_A_FACET),
    "len": ("take the length of", _IN_A_FACET),
    "contains": ("look with `in` into", "use contains(container, item)"),
    "str": ("make text of", _TEXT),
    "format": ("format (f-string or format) ", _TEXT),
    "bytes": ("make bytes of", _IN_A_FACET),
    "fspath": ("use as a path", _IN_A_FACET),
    **dict.fromkeys(["int", "float", "complex"], ("make a Python number of", _IN_A_FACET)),
    "index": ("count or index with", f"{_IN_A_FACET}; for a number of rounds, {_LOOP}"),
    **dict.fromkeys(["round", "trunc", "floor", "ceil", "abs", "pos"], ("round", _IN_A_FACET)),
    "hash": ("hash (as a key or in a set)", "keep it in a list, or use it as a dict's value"),
    **dict.fromkeys(["reduce", "reduce_ex"], ("pickle", _KEPT)),
    **dict.fromkeys(["copy", "deepcopy"], ("copy", _KEPT)),
    "setattr": ("set a field of", _FIXED),
    "delattr": ("delete a field of", _FIXED),
    "setitem": ("set an item of", _FIXED),
    "delitem": ("delete an item of", _FIXED),
    "call": ("call (as a function or method)", _IN_A_FACET),
    "await": ("await", "call the facet without `await`: the engine waits for its result"),
    **dict.fromkeys(["aiter", "anext"], ("iterate asynchronously over", _LOOP)),
    **dict.fromkeys(
        ["enter", "exit", "aenter", "aexit"],
        ("open a `with` block on", "open and close it inside one event facet"),
    ),
    **dict.fromkeys(
        [side + name for name in ("floordiv", "pow", "matmul", "lshift", "rshift", "xor", "divmod")
         for side in ("", "r")],
        ("use an operator a program does not have on", _OPERATOR),
    ),
}  # fmt: skip


def _refuse(symbol: Symbol, tried: str, cure: str) -> NoReturn:
    label = facts_of(symbol).label
    raise SymbolMisuse(
        f"{user_location()}: cannot {tried.strip()} {label}: it has no value until the workflow "
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
