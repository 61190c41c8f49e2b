"""What Python's own words cannot say about values of the run, as functions.

``and``, ``or``, ``not``, ``in``, f-strings and methods of text ask a value for an answer at
once. These functions write the question into the program instead. Given plain values they
answer at once, so that a unit test needs no engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from flowengine.authoring.locations import user_location
from flowengine.authoring.scopes import current_scope
from flowengine.authoring.symbols import Symbol, combined, expression_of, symbols_in
from flowengine.errors import AuthoringError
from flowengine.program.expressions import Constants, evaluate
from flowengine.program.nodes import Binary, Concat, Expression, Unary

Condition: TypeAlias = bool | Callable[[], bool]


def and_(first: Condition, *others: Condition) -> bool:
    """Whether all hold. What stands behind one that does not hold is not looked at.

    A lambda is called only if it is needed, as what stands behind Python's ``and`` is.
    """
    return _joined("&&", "and_", (first, *others))


def or_(first: Condition, *others: Condition) -> bool:
    """Whether one holds. What stands behind one that holds is not looked at."""
    return _joined("||", "or_", (first, *others))


def not_(condition: bool) -> bool:
    """Whether it does not hold."""
    if not isinstance(condition, Symbol):
        return not condition
    build = lambda: Unary("!", expression_of(condition))  # noqa: E731
    return cast(bool, combined((condition,), build, "the answer of not_(...)"))


def contains(container: Any, item: Any) -> bool:
    """Whether a list, text or map holds an item."""
    if not any(symbols_in((container, item))):
        return item in container
    return _asked("contains", "contains", container, item)


def is_in(item: Any, container: Any) -> bool:
    """Whether an item is in a list, text or map: ``in`` for values of the run."""
    if not any(symbols_in((container, item))):
        return item in container
    return _asked("in", "is_in", item, container)


def starts_with(text: str, beginning: str) -> bool:
    """Whether a text begins so."""
    return _asked("startsWith", "starts_with", text, beginning)


def ends_with(text: str, end: str) -> bool:
    """Whether a text ends so."""
    return _asked("endsWith", "ends_with", text, end)


def concat(*parts: Any) -> str:
    """Join values into one text: an f-string for values of the run; null adds nothing.

    Plain values are joined by the evaluator's own rule, so that a unit test sees the text a
    run would make.
    """
    return cast(str, _built("concat", parts, lambda *joined: Concat(joined)))


def _asked(operator: str, name: str, left: Any, right: Any) -> bool:
    return cast(bool, _built(name, (left, right), lambda a, b: Binary(operator, a, b)))


def _built(name: str, operands: tuple[Any, ...], node: Callable[..., Expression]) -> Any:
    def build() -> Expression:
        return node(*(expression_of(operand) for operand in operands))

    if any(symbols_in(operands)):
        return combined(operands, build, f"the value of {name}(...)")
    return evaluate(build(), Constants())


def _joined(operator: str, name: str, conditions: tuple[Condition, ...]) -> bool:
    deciding = operator == "||"
    answer: Any = not deciding
    for condition in conditions:
        value = _without_steps(name, condition)
        if isinstance(answer, Symbol):
            parts = (answer, value)
            answer = _built(name, parts, lambda a, b: Binary(operator, a, b))
        elif isinstance(value, Symbol):
            answer = value
        elif bool(value) is deciding:
            return deciding  # known while the body is read: the rest is not looked at
    return cast(bool, answer)


def _without_steps(name: str, condition: Condition) -> Any:
    if isinstance(condition, Symbol) or not callable(condition):
        return condition
    scope = current_scope()
    before = len(scope.statements) if scope else 0
    value = condition()
    if scope and len(scope.statements) > before:
        raise AuthoringError(
            f"{user_location()}: a step called inside {name}(...) would run whatever the other "
            "conditions say; call it on a line before, or inside a lambda of when(...)"
        )
    return value
