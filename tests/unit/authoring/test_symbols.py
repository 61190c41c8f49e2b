"""A symbol never silently returns a wrong value."""

from __future__ import annotations

import copy
import importlib
import math
import operator
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowengine.authoring import event_facet, workflow
from flowengine.errors import SymbolMisuse
from tests.unit.authoring.compiled import block, yielded


@event_facet
def fetch(url: str) -> Any: ...


def _trace(use: Callable[[Any], Any]) -> Any:
    def apply(symbol: Any) -> Any:
        return use(symbol)  # one call further, where the lint of `body` does not look

    def body(url):  # type: ignore[no-untyped-def]
        return apply(fetch(url))

    return workflow(name="t.w")(body).program()


def _await(x: Any) -> Any:
    return x.__await__()


def _with(x: Any) -> None:
    with x:
        pass


def _unpack(x: Any) -> Any:
    a, b = x
    return a, b


def _if(x: Any) -> int:
    if x == 1:
        return 2
    return 3


def _set_field(x: Any) -> None:
    x.field = 1


def _set_item(x: Any) -> None:
    x[0] = 1


def _delete_item(x: Any) -> None:
    del x[0]


BRANCH = r"instead of `if` write when\("
FACET = "event facet"
MISUSES: list[tuple[Callable[[Any], Any], str, str]] = [
    (bool, "branch on", BRANCH),
    (_if, "branch on", rf"{BRANCH}[^;]*$"),
    (lambda x: 1 if x else 2, "branch on", rf"{BRANCH}[^;]*$"),
    (lambda x: 1 if x.a > 3 else 2, "branch on", rf"{BRANCH}[^;]*$"),
    (lambda x: x and 1, "branch on", r"runs; instead of `and` write and_\("),
    (lambda x: 1 if (x > 1 and x < 4) else 2, "branch on", "runs; instead of `and`"),
    (lambda x: x or 1, "branch on", r"runs; instead of `or` write or_\("),
    (lambda x: not x, "branch on", r"runs; instead of `not` write not_\("),
    (lambda x: 1 < x < 3, "branch on", r"runs; instead of `a < b < c` write and_\(a < b, b < c\)"),
    (lambda x: x in [1, 2], "branch on", r"runs; instead of `x in items` write is_in\(x, items\)"),
    (lambda x: 2 in [x], "branch on", r"runs; instead of `x in items` write is_in\(x, items\)"),
    (lambda x: x not in [1, 2], "branch on", r"runs; instead of `x not in items` write not_\("),
    (lambda x: [n for n in range(3) if x > n], "branch on", "the `if` of a comprehension"),
    (list, "iterate over or unpack", "foreach"),
    (_unpack, "iterate over or unpack", r"\[0\], \[1\]"),
    (lambda x: [*x], "iterate over or unpack", "foreach"),
    (lambda x: fetch(*x), "iterate over or unpack", "foreach"),
    (sum, "iterate over or unpack", "foreach"),
    (next, "take the next item of", "foreach"),
    (reversed, "reverse", FACET),
    (len, "take the length of", FACET),
    (lambda x: 1 in x, "search with `in` in", r"contains\(container, item\)"),
    (str, "make text of", "concat"),
    (lambda x: f"{x}", "format", "concat"),
    (lambda x: f"{x:>3}", "format", "concat"),
    (lambda x: f"{x}", "format", "concat"),
    (lambda x: "%s" % x, "make text of", "concat"),  # noqa: UP031
    (bytes, "make bytes of|count or index with|make text", ""),
    (os.fspath, "open or join as a path", FACET),
    (int, "make a Python number of", FACET),
    (float, "make a Python number of", FACET),
    (complex, "make a Python number of", FACET),
    (range, "count or index with", "foreach"),
    (lambda x: [1, 2][x], "count or index with", FACET),
    (operator.index, "count or index with", FACET),
    (round, "round", FACET),
    (math.floor, "round", FACET),
    (abs, "round", FACET),
    (hash, "hash", "list"),
    (lambda x: {x: 1}, "hash", "list"),
    (lambda x: {x}, "hash", "list"),
    (pickle.dumps, "pickle", "pass it to a facet"),
    (copy.copy, "copy", "pass it to a facet"),
    (copy.deepcopy, "copy", "pass it to a facet"),
    (_set_field, "set a field of", "immutable"),
    (_set_item, "set an item of", "immutable"),
    (_delete_item, "delete an item of", "immutable"),
    (lambda x: delattr(x, "a"), "delete a field of", "immutable"),
    (lambda x: x(), "call", FACET),
    (_await, "await", "without `await`"),
    (lambda x: x.__aiter__(), "iterate asynchronously over", "foreach"),
    (_with, "open a `with` block on", FACET),
    (lambda x: x // 2, "use an operator", r"\+ - \* / %"),
    (lambda x: 2**x, "use an operator", FACET),
    (lambda x: +x, "use an operator", FACET),
    (lambda x: x[1:], "take a slice of", FACET),
]


@pytest.mark.parametrize(("use", "tried", "cure"), MISUSES)
def test_a_misuse_raises_with_operation_symbol_line_and_cure(
    use: Callable[[Any], Any], tried: str, cure: str
) -> None:
    with pytest.raises(SymbolMisuse) as raised:
        _trace(use)
    assert raised.match(rf"^{__file__}:\d+: cannot ({tried}).*fetch.*: .*({cure})")


def test_the_line_is_the_authors_even_below_the_standard_library() -> None:
    def misuse(x: Any) -> Any:
        return copy.deepcopy([x])

    with pytest.raises(SymbolMisuse, match=f":{misuse.__code__.co_firstlineno + 1}: cannot copy"):
        _trace(misuse)


def test_python_raises_where_it_replaces_our_error() -> None:
    with pytest.raises(TypeError, match="can only join an iterable"):
        _trace(lambda x: ",".join(x))


def test_a_method_call_names_the_method() -> None:
    with pytest.raises(SymbolMisuse, match=r"call .* field 'upper' of step 'fetch'"):
        _trace(lambda x: x.upper())


def test_an_expression_names_its_operands() -> None:
    with pytest.raises(SymbolMisuse, match=r"branch on the value of `fetch == 1`"):
        _trace(lambda x: bool(x == 1))


def test_repr_of_a_symbol_does_not_raise() -> None:
    seen = []
    _trace(lambda x: seen.append(repr([x, x.a, x[0], x + 1])))
    assert seen == [
        "[<flowengine symbol: step 'fetch'>, <flowengine symbol: field 'a' of step 'fetch'>, "
        "<flowengine symbol: an item of step 'fetch'>, "
        "<flowengine symbol: the value of `fetch + 1`>]"
    ]


@pytest.mark.parametrize(
    "leak",
    [repr, lambda x: f"{[x]}", lambda x: ["a", {"b": "%r" % x}]],  # noqa: UP031
)
def test_text_with_the_repr_of_a_symbol_is_refused(leak: Callable[[Any], Any]) -> None:
    with pytest.raises(SymbolMisuse, match=r"holds the repr of a symbol.*concat"):
        _trace(leak)
    with pytest.raises(SymbolMisuse, match="holds the repr of a symbol"):
        _trace(lambda x: fetch(str(leak(x))))


def test_private_names_raise_attribute_error() -> None:
    answers = []
    _trace(lambda x: answers.extend([hasattr(x, "__array__"), hasattr(x, "_repr_html_")]))
    assert answers == [False, False]


def test_any_public_name_is_a_field() -> None:
    @workflow(name="t.w")
    def w(a: Any) -> Any:
        return [a.expression, a.items, a.reach, a.facts]

    assert [ref.path[1] for ref in yielded(block(w)).elements] == [  # type: ignore[union-attr]
        "expression",
        "items",
        "reach",
        "facts",
    ]


def test_an_assert_raises_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a module of its own: pytest rewrites the asserts of this one.
    (tmp_path / "asserting.py").write_text("def check(x):\n    assert x > 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SymbolMisuse, match="instead of `assert` raise an error in an event facet"):
        _trace(importlib.import_module("asserting").check)


def test_without_source_every_cure_is_listed() -> None:
    namespace: dict[str, Any] = {}
    exec("def choose(x):\n    return 1 if x else 2", namespace)
    with pytest.raises(SymbolMisuse, match=r"when\(.*and_\(.*not_\(.*is_in\("):
        _trace(namespace["choose"])
