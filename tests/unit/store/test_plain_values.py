"""Values as they are read back: the short way of flat maps gives the same as JSON."""

from __future__ import annotations

import enum
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.store import codec


class Colour(str, enum.Enum):  # noqa: UP042 - its type is no str, and its JSON is one
    RED = "red"


_scalars = st.none() | st.booleans() | st.integers() | st.text()
_values = st.recursive(
    _scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(), _scalars) | _values)
def test_a_value_is_read_back_as_json_has_it(value: Any) -> None:
    found = codec.plain(value)
    assert json.dumps(found) == json.dumps(json.loads(json.dumps(value)))


def test_a_map_that_is_read_back_is_another_one() -> None:
    value = {"n": 1}
    assert codec.plain(value) == value
    assert codec.plain(value) is not value


@pytest.mark.parametrize("value", [{1: 2}, {"colour": Colour.RED}, {"pair": (1, 2)}])
def test_a_value_that_json_changes_is_read_back_changed(value: Any) -> None:
    assert repr(codec.plain(value)) == repr(json.loads(json.dumps(value)))


def test_an_infinity_is_refused_in_a_flat_map() -> None:
    with pytest.raises(ValueError, match="JSON"):
        codec.plain({"n": float("inf")})
