"""Evaluate expressions over a scope.

A scope returns inputs and step attributes as plain JSON. An expression without a value raises
`EvaluationError`, whose text becomes the error of the step that reads it. So does a value that
grows beyond the limits of the scope: it is refused while it grows.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator
from typing import Protocol

from flowengine.program.nodes import (
    ArrayLiteral,
    Binary,
    Concat,
    Expression,
    Index,
    InputRef,
    Json,
    Literal,
    MapLiteral,
    StepRef,
    Unary,
)
from flowengine.program.value_size import EvaluationError as EvaluationError
from flowengine.program.value_size import ValueLimits, checked_size, too_many_bytes
from flowengine.settings import Settings


class Scope(Protocol):
    """The values that an expression may read, and the limits of those that it computes."""

    @property
    def limits(self) -> ValueLimits: ...

    def spend(self, parts: int) -> None:
        """Count the parts of values that an operator goes through; raises at a limit."""

    def input(self, name: str) -> Json:
        """The value of ``$.name``."""

    def step_attribute(self, name: str, attribute: str) -> Json:
        """The value of ``name.attribute``: the return of that name, else the parameter."""

    def whole_step(self, name: str) -> Json:
        """A map of the step's parameters, overlaid by its returns."""


class Constants:
    """A scope with nothing in it, for expressions that must stand alone."""

    limits: ValueLimits = Settings()

    def spend(self, parts: int) -> None:
        """Constants are as large as the text of their program."""

    def input(self, name: str) -> Json:
        raise EvaluationError(f"a constant cannot refer to $.{name}")

    def whole_step(self, name: str, attribute: str = "") -> Json:
        raise EvaluationError(f"a constant cannot refer to step {name!r}")

    step_attribute = whole_step


def evaluate(node: Expression, scope: Scope) -> Json:
    """Return the value of an expression, or raise `EvaluationError`."""
    match node:
        case Literal(value):
            return value
        case InputRef(path):
            return _walk(scope.input(path[0]), path[1:], f"input {path[0]}")
        case StepRef((name,)):
            return scope.whole_step(name)
        case StepRef(path):
            found = scope.step_attribute(path[0], path[1])
            return _walk(found, path[2:], f"{path[0]}.{path[1]}")
        case Concat(operands):
            return _joined((_text(evaluate(operand, scope)) for operand in operands), scope)
        case Binary("&&", left, right):
            return bool(evaluate(left, scope)) and bool(evaluate(right, scope))
        case Binary("||", left, right):
            return bool(evaluate(left, scope)) or bool(evaluate(right, scope))
        case Binary("+", left, right):
            return _add("+", evaluate(left, scope), evaluate(right, scope), scope)
        case Binary(symbol, left, right):
            one, other = evaluate(left, scope), evaluate(right, scope)
            if type(one) in _LONG or type(other) in _LONG:
                scope.spend(_parts(one) + _parts(other))
            return _BINARY[symbol](symbol, one, other)
        case Unary("!", operand):
            return not evaluate(operand, scope)
        case Unary(_, operand):
            return -_number(evaluate(operand, scope), "-")
        case ArrayLiteral(elements):
            room = _Room(scope.limits)
            return [room.take(evaluate(element, scope)) for element in elements]
        case MapLiteral(entries):
            room = _Room(scope.limits)
            return {key: room.take(evaluate(value, scope)) for key, value in entries}
        case Index(target, index):
            return _item(evaluate(target, scope), evaluate(index, scope))


def references(node: Expression) -> Iterator[InputRef | StepRef]:
    """Yield every reference in an expression, in text order."""
    match node:
        case InputRef() | StepRef():
            yield node
        case Concat(parts) | ArrayLiteral(parts):
            for part in parts:
                yield from references(part)
        case Binary(_, left, right) | Index(left, right):
            yield from references(left)
            yield from references(right)
        case Unary(_, operand):
            yield from references(operand)
        case MapLiteral(entries):
            for _, value in entries:
                yield from references(value)
        case Literal():
            pass


class _Room:
    """The bytes that the parts of a list or a map may still take."""

    def __init__(self, limits: ValueLimits) -> None:
        self._limits, self._left = limits, limits.max_computed_bytes

    def take(self, part: Json) -> Json:
        self._left -= checked_size(part, self._limits)
        if self._left < 0:
            raise too_many_bytes(self._limits.max_computed_bytes)
        return part


def _joined(texts: Iterator[str], scope: Scope) -> str:
    most = left = scope.limits.max_computed_bytes
    parts = []
    for text in texts:
        left -= len(text)
        if left < 0:
            raise too_many_bytes(most)
        parts.append(text)
    scope.spend((most - left) // _CHARACTERS)
    return "".join(parts)


_LONG = frozenset({str, list, dict})
_PLAIN = frozenset({int, float, str, type(None)})
_SHORT = frozenset({int, float, bool, type(None)})
_CHARACTERS = 16  # of a text, that take as long as one part of a list


def _parts(value: Json) -> int:
    """Return how many parts an operator may go through: list entries, keys, pieces of text."""
    if isinstance(value, str):
        return len(value) // _CHARACTERS
    count, level = 1, [value] if isinstance(value, list | dict) else []
    while level:
        inner: list[Json] = []
        for part in level:
            count += len(part)
            values = part.values() if isinstance(part, dict) else part
            if _SHORT.issuperset(map(type, values)):
                continue
            for each in values:
                if isinstance(each, str):
                    count += len(each) // _CHARACTERS
                elif isinstance(each, list | dict):
                    inner.append(each)
        level = inner
    return count


def _walk(value: Json, path: tuple[str, ...], named: str) -> Json:
    for attribute in path:
        if not isinstance(value, dict):
            raise EvaluationError(f"{named} is {_describe(value)} and has no {attribute!r}")
        if attribute not in value:
            raise EvaluationError(f"{named} has no {attribute!r}")
        value, named = value[attribute], f"{named}.{attribute}"
    return value


def _item(target: Json, index: Json) -> Json:
    match target, index:
        case dict(), str():
            if index not in target:
                raise EvaluationError(f"the map has no key {index!r}")
            return target[index]
        case ((list() | str()), int()) if not isinstance(index, bool):
            if not -len(target) <= index < len(target):
                raise EvaluationError(f"index {index} is outside {_describe(target)}")
            return target[index]
    raise EvaluationError(f"{_describe(target)} has no item {index!r}")


def _text(value: Json) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case bool() | int() | float():
            return json.dumps(value)
    raise EvaluationError(f"{_describe(value)} cannot be joined to text")


def _number(value: Json, symbol: str) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise EvaluationError(f"{_describe(value)} cannot be used with {symbol!r}")


def _add(symbol: str, left: Json, right: Json, scope: Scope) -> Json:
    are_texts = isinstance(left, str) and isinstance(right, str)
    if not are_texts and not (isinstance(left, list) and isinstance(right, list)):
        return _calculate(symbol, left, right)
    length, most = len(left) + len(right), scope.limits.max_computed_bytes
    if length > most:
        raise too_many_bytes(most)
    scope.spend(length // _CHARACTERS if are_texts else length)
    return left + right


_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}


def _calculate(symbol: str, left: Json, right: Json) -> Json:
    a, b = _number(left, symbol), _number(right, symbol)
    try:
        result = _ARITHMETIC[symbol](a, b)
    except ZeroDivisionError:
        raise EvaluationError(f"division by zero: {a} {symbol} {b}") from None
    except OverflowError:
        result = math.inf
    # JSON has no infinity, and whole numbers must not grow without end either.
    is_small = result.bit_length() <= 1024 if isinstance(result, int) else math.isfinite(result)
    if not is_small:
        raise EvaluationError(f"the result of {symbol!r} is too large")
    return result


_ORDER: dict[str, Callable[[Json, Json], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compare(symbol: str, left: Json, right: Json) -> bool:
    if not (isinstance(left, str) and isinstance(right, str)):
        left, right = _number(left, symbol), _number(right, symbol)
    return _ORDER[symbol](left, right)


def _equal(left: Json, right: Json) -> bool:
    # Python compares whole lists and maps without this interpreter's loop, but holds True == 1.
    return bool(left == right) and _same_truths(left, right)


def _same_truths(left: Json, right: Json) -> bool:
    """Whether two values that are equal in Python have their truth values at the same places."""
    if left is right or not isinstance(left, list | dict):
        return isinstance(left, bool) is isinstance(right, bool)
    if isinstance(left, dict):
        left, right = list(left.values()), [right[key] for key in left]
    if _PLAIN.issuperset(map(type, left)) and _PLAIN.issuperset(map(type, right)):
        return True
    return all(map(_same_truths, left, right))


def _contains(symbol: str, container: Json, item: Json) -> bool:
    match container, item:
        case list(), _:
            return any(_equal(element, item) for element in container)
        case ((str() | dict()), str()):
            return item in container
    raise EvaluationError(f"{_describe(container)} cannot hold {_describe(item)} ({symbol})")


def _affix(symbol: str, text: Json, part: Json) -> bool:
    if not (isinstance(text, str) and isinstance(part, str)):
        raise EvaluationError(f"{symbol} wants text, found {_describe(text)}, {_describe(part)}")
    return text.startswith(part) if symbol == "startsWith" else text.endswith(part)


_BINARY: dict[str, Callable[[str, Json, Json], Json]] = {
    **dict.fromkeys("-*/%", _calculate),
    **dict.fromkeys(_ORDER, _compare),
    "==": lambda _, left, right: _equal(left, right),
    "!=": lambda _, left, right: not _equal(left, right),
    "in": lambda symbol, item, container: _contains(symbol, container, item),
    "not in": lambda symbol, item, container: not _contains(symbol, container, item),
    "contains": _contains,
    "startsWith": _affix,
    "endsWith": _affix,
}


def _describe(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a truth value"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {value[:40]!r}"
        case list():
            return f"a list of {len(value)}"
    return f"a map with the keys {sorted(value)[:8]}"
