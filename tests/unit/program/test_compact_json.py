"""JSON written by the encoder that is built once equals that of the standard library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.program.compact_json import encoder

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_every_value_is_written_as_the_standard_library_writes_it(value: Any) -> None:
    assert encoder(allow_nan=True)(value) == json.dumps(value, separators=(",", ":"))


def test_a_value_that_contains_itself_is_refused_by_name() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="Circular reference"):
        encoder(allow_nan=False)(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_a_number_without_a_json_form_is_refused_on_demand(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encoder(allow_nan=False)(value)


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        encoder(allow_nan=False)({"a": {1}})
    assert encoder(allow_nan=False)({"a": [1]}) == '{"a":[1]}'  # nothing is left behind
