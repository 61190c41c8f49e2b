"""A receiver gets an answer for whatever it is sent, and no key that anybody has is accepted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine import webhooks

KEY, BODY, AT = "k" * 40, b'{"outcomes": []}', 1_700_000_000
SIGNED = webhooks.signature(BODY, [KEY], AT)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "t=,v1=",
        f"t={'9' * 400},v1=00",
        f"t={'9' * 5_000},v1=00",
        "t=¹²³,v1=00",
        "t=١٢٣,v1=00",
        f"t={AT},v1=\ud800",
        f"t={AT},v1=ü",
        f"t={AT},t={AT},{SIGNED}",
        "\ud800" * 10,
    ],
    ids=lambda header: repr(header)[:20],
)
def test_any_header_is_answered(header: str | None) -> None:
    assert webhooks.verify(BODY, header, [KEY], now=AT) is False


@given(st.text(alphabet=st.characters(codec=None)) | st.from_regex(r"t=\d*,v1=.*"))
def test_no_header_raises(header: str) -> None:
    assert webhooks.verify(BODY, header, [KEY], now=AT) is False


@pytest.mark.parametrize("keys", [[], [""], [KEY, ""], "", KEY, ()], ids=repr)
def test_a_key_that_is_missing_or_empty_is_refused(keys: Any) -> None:
    with pytest.raises(ValueError, match="not empty: was a variable not set"):
        webhooks.verify(BODY, SIGNED, keys, now=AT)


def test_the_signature_of_a_key_is_accepted() -> None:
    assert webhooks.verify(BODY, SIGNED, ["other" * 8, KEY], now=AT)
