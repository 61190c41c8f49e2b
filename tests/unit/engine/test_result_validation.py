"""The one value of a Python function under the names its facet declares."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.engine.result_validation import named_result
from flowengine.errors import DoesNotFit


@pytest.mark.parametrize(
    ("value", "declared", "gives"),
    [
        (3, ["result"], {"result": 3}),
        (3, [], {"result": 3}),
        (3, ["n"], {"n": 3}),
        (None, ["n"], {"n": None}),
        ({"n": 3}, ["n"], {"n": 3}),
        ({"a": 1}, ["n"], {"n": {"a": 1}}),
        ({}, ["n"], {"n": {}}),
        ({"a": 1, "b": 2}, ["b", "a"], {"a": 1, "b": 2}),
        ({"a": 1}, ["a", "b"], {"a": 1}),
        ({"a": 1}, ["a", "result"], {"result": {"a": 1}}),
    ],
)
def test_a_value_gets_the_declared_names(
    value: Any, declared: list[str], gives: dict[str, Any]
) -> None:
    assert named_result("n.F", {"result": value}, declared) == gives


@pytest.mark.parametrize(
    ("value", "says"), [(3, "and not int"), ({"c": 1}, "'c' is not among them")]
)
def test_each_of_several_returns_must_be_named(value: Any, says: str) -> None:
    with pytest.raises(DoesNotFit, match=says):
        named_result("n.F", {"result": value}, ["a", "b"])
