"""A value fits its declared type, or it is said why not."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.program.nodes import ArrayType, Field, Type
from flowengine.program.types import field_misfit, misfit, misfits


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("Long", 3),
        ("Long", 3.0),
        ("Int", -1),
        ("Integer", 0),
        ("Double", 3),
        ("Double", 0.5),
        ("String", ""),
        ("Boolean", False),
        ("Json", {"any": ["thing"]}),
        ("shop.Order", {"a": 1}),
        (ArrayType("Long"), []),
        (ArrayType("Long"), [1, None, 2]),
        (ArrayType(ArrayType("String")), [["a"], []]),
    ],
)
def test_a_value_of_the_type_fits(declared: Type, value: Any) -> None:
    assert misfit(declared, value) == ""


@pytest.mark.parametrize("declared", ["Long", "Double", "String", "Boolean", ArrayType("Long")])
def test_null_fits_every_type(declared: Type) -> None:
    assert misfit(declared, None) == ""


@pytest.mark.parametrize(
    ("declared", "value", "why"),
    [
        ("Long", 3.5, "expected Long, found 3.5"),
        ("Long", float("inf"), "expected Long, found inf"),
        ("Long", True, "expected Long, found a truth value"),
        ("Double", False, "expected Double, found a truth value"),
        ("Double", "1", "expected Double, found '1'"),
        ("String", 1, "expected String, found 1"),
        ("String", ["a"], "expected String, found a list"),
        ("Boolean", 1, "expected Boolean, found 1"),
        ("Boolean", {}, "expected Boolean, found a map"),
        (ArrayType("Long"), {"0": 1}, "expected a list, found a map"),
        (ArrayType("Long"), "12", "expected a list, found '12'"),
        (ArrayType("Long"), [1, "x", "y"], "item 1: expected Long, found 'x'"),
        (ArrayType(ArrayType("Long")), [[], [1, ""]], "item 1: item 1: expected Long, found ''"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_reason(
    declared: Type, value: Any, why: str
) -> None:
    assert misfit(declared, value) == why


def test_a_long_text_is_shown_in_part() -> None:
    why = misfit("Long", "x" * 500)
    assert why.endswith("…")
    assert len(why) < 100


def test_a_schema_is_checked_in_addition_to_the_type() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    field = Field("order", "Json", schema=schema)
    assert field_misfit(field, {"n": 1}) == ""
    assert field_misfit(field, {"n": "one"}) == "n: 'one' is not of type 'integer'"
    assert field_misfit(field, {}) == "'n' is a required property"


def test_the_type_is_looked_at_before_the_schema() -> None:
    field = Field("n", "Long", schema={"minimum": 3})
    assert field_misfit(field, "four") == "expected Long, found 'four'"
    assert field_misfit(field, 2) == "2 is less than the minimum of 3"


def test_equal_schemas_of_two_fields_are_both_looked_at() -> None:
    for _ in range(3):
        assert field_misfit(Field("n", "Json", schema={"minimum": 3}), 2)
        assert not field_misfit(Field("n", "Json", schema={"minimum": 1}), 2)


def test_all_misfits_are_named_and_absent_values_are_ignored() -> None:
    fields = [Field("a", "Long"), Field("b", "String"), Field("c", "Boolean")]
    assert misfits(fields, {"a": "x", "b": 1}) == [
        "'a': expected Long, found 'x'",
        "'b': expected String, found 1",
    ]
