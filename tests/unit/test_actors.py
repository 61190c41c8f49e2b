"""Actors as texts: a kind before a colon, or the name of a person."""

from __future__ import annotations

import pytest

from flowengine import Actor
from flowengine.errors import InvalidActor


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        ("eva", "person:eva"),
        ("token:ci", "token:ci"),
        ("user:eva", "person:user:eva"),
        ("https://id.example.org/7", "person:https://id.example.org/7"),
        ("person:tokn:ci", "person:tokn:ci"),
    ],
)
def test_a_text_without_a_kind_is_the_name_of_a_person(text: str, recorded: str) -> None:
    assert str(Actor.of(text)) == recorded


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("tokn:ci", "token:ci"),
        ("Token: ci", "token:ci"),
        ("scheduler:nightly", "schedule:nightly"),
        ("service:mail", "server:mail"),
    ],
)
def test_a_misspelt_kind_is_refused_with_the_text_that_was_meant(text: str, meant: str) -> None:
    with pytest.raises(InvalidActor) as caught:
        Actor.of(text)
    assert f"write {meant!r}, or 'person:{text}'" in str(caught.value)
