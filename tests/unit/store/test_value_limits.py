"""A value is refused exactly if its JSON is too large; small ones are not encoded for that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.errors import TooLarge
from flowengine.store import codec

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(), max_size=20),
    st.sampled_from(['"' * 5, "\U0001f600" * 3, "\x00", "\ud800", "é", 1 << 70]),
)


@given(_SCALARS, st.integers(-12, 12))
def test_a_scalar_is_refused_if_its_json_is_longer_than_the_limit(value: Any, room: int) -> None:
    limit = len(codec.dump(value)) + room
    if room < 0:
        with pytest.raises(TooLarge):
            codec.check_value("value", value, limit)
    else:
        codec.check_value("value", value, limit)
