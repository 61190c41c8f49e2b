"""Functions for the operators that Python does not let a symbol overload.

``and``, ``or``, ``not``, ``in``, f-strings and string methods need the value at once. These
functions build an expression of the program instead. Plain values are evaluated directly,
so a unit test needs no engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from flowengine.authoring.locations import user_location
from flowengine.authoring.scopes import current_scope
from flowengine.authoring.symbols import Symbol, combine, expression_of, symbols_in
from flowengine.errors import AuthoringError
from flowengine.program.expressions import Constants, evaluate
from flowengine.program.nodes import Binary, Concat, Expression, Unary

Condition: TypeAlias = bool | Callable[[], bool]


def and_(first: Condition, *others: Condition) -> bool:
    """Whether all conditions hold; evaluation stops at the first that does not.

    A lambda is called only if it is reached.
    """
    return _logical("&&", "and_", (first, *others))


def or_(first: Condition, *others: Condition) -> bool:
    """Whether any condition holds; evaluation stops at the first that does."""
    return _logical("||", "or_", (first, *others))


def not_(condition: bool) -> bool:
    """Whether the condition does not hold."""
    if not isinstance(condition, Symbol):
        return not condition
    build = lambda: Unary("!", expression_of(condition))  # noqa: E731
    return cast(bool, combine((condition,), build, "the value of not_(...)"))


def contains(container: Any, item: Any) -> bool:
    """Whether a list, text or map holds an item."""
    if not any(symbols_in((container, item))):
        return item in container
    return _binary_question("contains", "contains", container, item)


def is_in(item: Any, container: Any) -> bool:
    """Whether an item is in a list, text or map: ``in`` for values of the run."""
    if not any(symbols_in((container, item))):
        return item in container
    return _binary_question("in", "is_in", item, container)


def starts_with(text: str, beginning: str) -> bool:
    """Whether a text starts with another."""
    return _binary_question("startsWith", "starts_with", text, beginning)


def ends_with(text: str, end: str) -> bool:
    """Whether a text ends with another."""
    return _binary_question("endsWith", "ends_with", text, end)


def concat(*parts: Any) -> str:
    """Join values into one text: an f-string for values of the run; null adds nothing.

    Plain values are joined by the rule of the evaluator, so a unit test sees the text of a run.
    """
    return cast(str, _expression("concat", parts, lambda *joined: Concat(joined)))


def _binary_question(operator: str, name: str, left: Any, right: Any) -> bool:
    return cast(bool, _expression(name, (left, right), lambda a, b: Binary(operator, a, b)))


def _expression(name: str, operands: tuple[Any, ...], node: Callable[..., Expression]) -> Any:
    def build() -> Expression:
        return node(*(expression_of(operand) for operand in operands))

    if any(symbols_in(operands)):
        return combine(operands, build, f"the value of {name}(...)")
    return evaluate(build(), Constants())


def _logical(operator: str, name: str, conditions: tuple[Condition, ...]) -> bool:
    short_circuit = operator == "||"
    answer: Any = not short_circuit
    for condition in conditions:
        value = _condition_value(name, condition)
        if isinstance(answer, Symbol):
            parts = (answer, value)
            answer = _expression(name, parts, lambda a, b: Binary(operator, a, b))
        elif isinstance(value, Symbol):
            answer = value
        elif bool(value) is short_circuit:
            return short_circuit  # constant: the remaining conditions are irrelevant
    return cast(bool, answer)


def _condition_value(name: str, condition: Condition) -> Any:
    if isinstance(condition, Symbol) or not callable(condition):
        return condition
    scope = current_scope()
    before = len(scope.statements) if scope else 0
    value = condition()
    if scope and len(scope.statements) > before:
        raise AuthoringError(
            f"{user_location()}: a step called inside {name}(...) would run regardless of the "
            "other conditions; call it on an earlier line, or inside a lambda of when(...)"
        )
    return value
