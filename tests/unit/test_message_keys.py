"""A signature is of one message and one key, and of nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine import signed_message
from flowengine.errors import InvalidSetting
from flowengine.message_keys import HEADER, MessageKeys
from flowengine.settings import Settings

OLD, NEW, OTHER = "o" * 32, "n" * 32, "x" * 32
KEYS = MessageKeys(NEW)
NOW = 1_000_000

texts = st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
json_values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(texts, scalars, max_size=3)


def problem_once(
    headers: Mapping[str, str],
    task: str = "t",
    args: Sequence[Any] = (1,),
    kwargs: Mapping[str, Any] | None = None,
    message_id: str = "id",
    now: float = NOW,
    keys: MessageKeys = KEYS,
) -> str:
    return keys.problem(headers.get(HEADER), task, args, kwargs or {}, message_id, now)


@given(st.lists(json_values, max_size=3), st.dictionaries(texts, json_values, max_size=3))
def test_a_message_that_went_through_json_is_accepted(
    args: list[Any], kwargs: dict[str, Any]
) -> None:
    headers = KEYS.headers("t", args, kwargs, message_id="id", expires=NOW + 1)
    received = json.loads(json.dumps([args, kwargs]))
    assert problem_once(headers, "t", *received) == ""
    headers = KEYS.headers("t", args, kwargs)
    assert KEYS.problem(headers[HEADER], "t", *received) == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"task": "u"},
        {"args": (2,)},
        {"args": ("1",)},
        {"args": (1.0,)},
        {"args": (True,)},
        {"args": ()},
        {"kwargs": {"a": 1}},
        {"message_id": "another"},
        {"keys": MessageKeys(OTHER)},
    ],
)
def test_every_part_of_a_message_is_signed(changed: dict[str, Any]) -> None:
    headers = KEYS.headers("t", (1,), message_id="id", expires=NOW + 1)
    assert problem_once(headers) == ""
    assert problem_once(headers, **changed) == "its signature is of another key or another message"


def test_the_expiry_is_signed_and_ends_the_signature() -> None:
    headers = KEYS.headers("t", (1,), message_id="id", expires=NOW + 10)
    assert problem_once(headers, now=NOW + 9.9) == ""
    assert problem_once(headers, now=NOW + 10) == "its signature has expired"
    later = {HEADER: headers[HEADER].replace(str(NOW + 10), str(NOW + 99))}
    assert "another message" in problem_once(later, now=NOW + 10)


def test_a_wakeup_does_not_pass_as_a_message_that_must_not_be_repeated() -> None:
    wakeup = KEYS.headers("t", (1,))
    assert problem_once(wakeup, message_id="") == "its signature is of another kind of message"
    once = KEYS.headers("t", (1,), expires=NOW + 1)
    assert KEYS.problem(once[HEADER], "t", (1,), {}) == (
        "its signature is of another kind of message"
    )


def test_the_first_key_signs_and_all_verify() -> None:
    both = MessageKeys(f" {NEW}, {OLD} ")
    assert both.headers("t") == KEYS.headers("t")
    for key in (NEW, OLD):
        assert both.problem(MessageKeys(key).headers("t")[HEADER], "t", (), {}) == ""
    assert both.problem(MessageKeys(OTHER).headers("t")[HEADER], "t", (), {})


def test_without_a_key_nothing_is_signed() -> None:
    assert not MessageKeys()
    assert MessageKeys("").headers("t") == {}


@given(st.none() | st.integers() | st.text() | st.from_regex(r"1\.\d{0,20}\.\w*"))
def test_any_other_header_is_refused(header: object) -> None:
    assert KEYS.problem(header, "t", (), {})
    assert KEYS.problem(header, "t", (), {}, "", NOW)


@pytest.mark.parametrize("header", ["1.²²²." + "0" * 64, "1." + "9" * 5000 + ".x", "1.0.\ud800"])
def test_numbers_of_other_alphabets_and_thousands_of_digits_are_refused(header: str) -> None:
    assert KEYS.problem(header, "t", (), {})


def test_arguments_that_are_not_json_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    given = KEYS.headers("t")[HEADER]
    assert KEYS.problem(given, "t", (deep,), {}) == "its arguments are not JSON"
    assert KEYS.problem(given, "t", ({1, 2},), {}) == "its arguments are not JSON"


def test_a_client_signs_with_the_key_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWENGINE_MESSAGE_KEYS", f"{NEW},{OLD}")
    sent = signed_message("flowengine.execute", ("w", {"n": 1}), seconds=60)
    assert sent["args"] == ["w", {"n": 1}]
    assert sent["name"] == "flowengine.execute"
    expires = int(sent["headers"][HEADER].split(".")[1])
    given = (sent["headers"], sent["name"], sent["args"], {}, sent["task_id"])
    assert problem_once(*given, now=expires - 1) == ""
    assert problem_once(*given, now=expires) == "its signature has expired"
    monkeypatch.delenv("FLOWENGINE_MESSAGE_KEYS")
    assert signed_message("t")["headers"] == {}
    assert signed_message("t", keys=OTHER)["headers"]


@pytest.mark.parametrize("text", ["short", f"{NEW},short", f"{NEW},", "s" * 31])
def test_a_short_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidSetting, match="at least 32 characters") as refused:
        Settings.from_environment({"FLOWENGINE_MESSAGE_KEYS": text})
    assert text not in str(refused.value)


def test_the_text_of_the_settings_has_no_key() -> None:
    settings = Settings.from_environment({"FLOWENGINE_MESSAGE_KEYS": NEW})
    assert settings.message_keys == NEW
    assert NEW not in repr(settings)
