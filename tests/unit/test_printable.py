"""Text of others is shown without control characters, and URLs without passwords."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.errors import DoesNotFit, InvalidInputs, InvalidSetting
from flowengine.printable import masked_url, names_of, printable

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("tea ☕ für 你好", "tea ☕ für 你好"),
        ("[/b] and [red]", "[/b] and [red]"),
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("one\ntwo\rthree\ttab", r"one\ntwo\rthree\ttab"),
        ("\x9b31m", r"\x9b31m"),
        ("pay \u202e001\u202c", r"pay \u202e001\u202c"),
        ("\u2028", r"\u2028"),
        ("half \ud800", r"half \ud800"),
    ],
)
def test_control_characters_become_escape_sequences(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_keep_their_newlines_and_tabs() -> None:
    assert printable("a\n\tb\x1b[2J\r\n", lines=True) == "a\n\tb\\x1b[2J\\r\n"


def test_a_long_text_is_cut_and_says_how_long_it_was() -> None:
    assert printable("x" * 4999 + "y", limit=8) == "xxxxxx…xy (5,000 characters)"
    assert printable("short\n" + "x" * 5000, lines=True, limit=8) == (
        "short\nxxxxxx…xx (5,000 characters)"
    )


@given(ANY_TEXT)
def test_no_text_keeps_a_control_character_a_line_break_or_a_surrogate(text: str) -> None:
    shown = printable(text)
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert len(shown.splitlines()) <= 1
    shown.encode()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///flowengine.db", "sqlite:///flowengine.db"),
        ("postgresql://joe@host:5432/db", "postgresql://joe@host:5432/db"),
        ("postgresql://joe:geheim@host/db", "postgresql://joe:***@host/db"),
        ("postgresql://joe:ge@he/im@host/db", "postgresql://joe:***@host/db"),
        ("redis://:geheim@host/0", "redis://:***@host/0"),
        ("postgresql:///db?password=geheim&host=x", "postgresql:///db?password=***&host=x"),
        ("postgresql:///db?a=1&SSLPassword=geheim", "postgresql:///db?a=1&SSLPassword=***"),
        ("x:///?auth_token=geheim;b", "x:///?auth_token=***"),
        ("postgres//joe:geheim@host", "postgres//joe:***@host"),
    ],
)
def test_passwords_of_a_url_are_masked_before_the_host_and_in_the_query(
    url: str, shown: str
) -> None:
    assert masked_url(url) == shown


def test_an_invalid_setting_shows_no_password() -> None:
    problem = InvalidSetting("FLOWENGINE_BREAKER_REDIS_URL", "amqp://u:geheim@h", "a Redis")
    assert "geheim" not in str(problem)


def test_names_of_inputs_are_listed_without_values_and_cut() -> None:
    assert names_of({"card": "4111", "n": 1}) == "'card', 'n'"
    assert names_of({}) == names_of(None) == "none"
    assert names_of([1, 2]) == "a list"
    assert len(names_of({f"name{n}": n for n in range(100_000)})) < 600


def test_errors_of_inputs_have_a_form_without_values() -> None:
    problems = [
        "'n' should be int, was '4111' (str): 'x'",
        "input 'card': expected Long, found '4111'",
        "unknown input 'nn', did you mean 'n'?",
        "the priority must be a whole number, not '4111' (str)",
    ]
    for error in (InvalidInputs("pay", problems), DoesNotFit("pay", problems)):
        assert "4111" in str(error)
        shown = error.without_values()
        assert "4111" not in shown
        assert "'n', input 'card', unknown input 'nn', the priority" in shown
