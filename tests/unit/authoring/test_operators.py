"""Python code can build every expression of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowengine.authoring import (
    and_,
    concat,
    contains,
    ends_with,
    event_facet,
    is_in,
    not_,
    or_,
    starts_with,
    workflow,
)
from flowengine.errors import AuthoringError
from flowengine.program.expressions import Constants, evaluate
from flowengine.program.nodes import (
    BINARY_OPERATORS,
    UNARY_OPERATORS,
    ArrayLiteral,
    Binary,
    Concat,
    Expression,
    Index,
    InputRef,
    Literal,
    MapLiteral,
    Unary,
)
from tests.unit.authoring.compiled import block, yielded

X = InputRef(("x",))
Y = InputRef(("y",))


@event_facet
def check(x: Any) -> bool: ...


def traced(use: Callable[[Any, Any], Any]) -> Expression:
    def body(x: Any, y: Any) -> Any:
        return use(x, y)

    return yielded(block(workflow(name="t.w")(body)))


WRITTEN: list[tuple[Callable[[Any, Any], Any], Expression]] = [
    (lambda x, y: x + y, Binary("+", X, Y)),
    (lambda x, y: 1 + x, Binary("+", Literal(1), X)),
    (lambda x, y: x - 1, Binary("-", X, Literal(1))),
    (lambda x, y: x * y, Binary("*", X, Y)),
    (lambda x, y: x / y, Binary("/", X, Y)),
    (lambda x, y: x % 2, Binary("%", X, Literal(2))),
    (lambda x, y: x == None, Binary("==", X, Literal(None))),  # noqa: E711
    (lambda x, y: x != y, Binary("!=", X, Y)),
    (lambda x, y: x < y, Binary("<", X, Y)),
    (lambda x, y: x <= y, Binary("<=", X, Y)),
    (lambda x, y: x > y, Binary(">", X, Y)),
    (lambda x, y: x >= y, Binary(">=", X, Y)),
    (lambda x, y: x & y, Binary("&&", X, Y)),
    (lambda x, y: x | y, Binary("||", X, Y)),
    (lambda x, y: ~x, Unary("!", X)),
    (lambda x, y: -x, Unary("-", X)),
    (lambda x, y: and_(x, y), Binary("&&", X, Y)),
    (lambda x, y: and_(x, y, x), Binary("&&", Binary("&&", X, Y), X)),
    (lambda x, y: and_(True, x), X),
    (lambda x, y: and_(x, True), Binary("&&", X, Literal(True))),
    (lambda x, y: and_(False, x), Literal(False)),
    (lambda x, y: and_(x, lambda: y > 0), Binary("&&", X, Binary(">", Y, Literal(0)))),
    (lambda x, y: or_(x, y), Binary("||", X, Y)),
    (lambda x, y: or_(True, x), Literal(True)),
    (lambda x, y: not_(x), Unary("!", X)),
    (lambda x, y: contains(x, y), Binary("contains", X, Y)),
    (lambda x, y: is_in(x, [1, 2]), Binary("in", X, Literal([1, 2]))),
    (lambda x, y: is_in(1, [x, y]), Binary("in", Literal(1), ArrayLiteral((X, Y)))),
    (lambda x, y: not_(is_in(x, y)), Unary("!", Binary("in", X, Y))),
    (lambda x, y: starts_with(x, "a"), Binary("startsWith", X, Literal("a"))),
    (lambda x, y: ends_with(x, y), Binary("endsWith", X, Y)),
    (lambda x, y: concat("a", x, 1), Concat((Literal("a"), X, Literal(1)))),
    (lambda x, y: [x, 1], ArrayLiteral((X, Literal(1)))),
    (lambda x, y: {"k": x}, MapLiteral((("k", X),))),
    (lambda x, y: x[0], Index(X, Literal(0))),
    (lambda x, y: x["key"], Index(X, Literal("key"))),
    (lambda x, y: x[y], Index(X, Y)),
    (lambda x, y: x.a.b, InputRef(("x", "a", "b"))),
]


@pytest.mark.parametrize(("use", "expected"), WRITTEN)
def test_python_builds_the_expression(use: Callable[[Any, Any], Any], expected: Expression) -> None:
    assert traced(use) == expected


def test_every_operator_of_the_language_is_tested() -> None:
    def operators(node: Expression) -> set[str]:
        match node:
            case Binary(operator, left, right):
                return {operator} | operators(left) | operators(right)
            case Unary(operator, operand):
                return {operator} | operators(operand)
        return set()

    written = {operator for _, node in WRITTEN for operator in operators(node)}
    assert written | {"not in"} == BINARY_OPERATORS | UNARY_OPERATORS  # not_(is_in(…)) is the same


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda: and_(True, True), True),
        (lambda: and_(False, lambda: 1 / 0 > 0), False),
        (lambda: or_(True, lambda: 1 / 0 > 0), True),
        (lambda: or_(False, False), False),
        (lambda: not_(True), False),
        (lambda: is_in(1, {1, 2}), True),
        (lambda: contains("text", "ex"), True),
        (lambda: starts_with("text", "te"), True),
        (lambda: ends_with("text", "te"), False),
        (lambda: concat("a", None, 1, True), "a1true"),
    ],
)
def test_plain_values_are_evaluated_directly(use: Callable[[], Any], expected: Any) -> None:
    assert use() == expected


def test_and_and_or_short_circuit() -> None:
    fails = Binary("/", Literal(1), Literal(0))
    assert evaluate(Binary("&&", Literal(False), fails), Constants()) is False
    assert evaluate(Binary("||", Literal(True), fails), Constants()) is True


def test_a_step_inside_a_condition_is_refused() -> None:
    with pytest.raises(AuthoringError, match=r"a step called inside and_\(\.\.\.\) would run"):
        traced(lambda x, y: and_(x, lambda: check(y)))
