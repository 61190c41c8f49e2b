"""Signed links."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode

import pytest

from flowengine.answer_links import PATH, AnswerLinks, LinkedAnswer
from flowengine.errors import LinkRefused

ANSWER = LinkedAnswer("f00", "approval", "eva", 1_000, True, {"granted": True})


def test_a_link_gives_back_what_was_signed() -> None:
    links = AnswerLinks("first,second", "https://flower.example.com/prefix/")
    link = links.sign(ANSWER)
    assert link.startswith(f"https://flower.example.com/prefix{PATH}")
    assert links.read(link, 999) == ANSWER
    asks = LinkedAnswer("f00", "approval", "", 1_000, False)
    assert AnswerLinks("first").read(AnswerLinks("first").sign(asks), 999) == asks


def test_an_answer_of_null_is_a_value() -> None:
    links = AnswerLinks("key")
    null = LinkedAnswer("f00", "approval", "", 1_000, True, None)
    assert links.read(links.sign(null), 0).has_value


def test_a_replaced_key_verifies_until_it_is_removed() -> None:
    link = AnswerLinks("old").sign(ANSWER)
    assert AnswerLinks("new,old").read(link, 0) == ANSWER
    with pytest.raises(LinkRefused, match="not of a key of this installation"):
        AnswerLinks("new").read(link, 0)


def test_a_link_expires() -> None:
    links = AnswerLinks("key")
    with pytest.raises(LinkRefused, match="expired"):
        links.read(links.sign(ANSWER), 1_000)


def test_every_change_of_a_link_is_refused() -> None:
    links = AnswerLinks("key")
    link = links.sign(ANSWER)
    body, _, signature = link.partition(".")
    forged = json.dumps([1, "f00", "approval", "eve", 9_999, [{"granted": True}]]).encode()
    others = [f"{urlsafe_b64encode(forged).decode().rstrip('=')}.{signature}", body, f"{body}."]
    others += ["", ".", "ä.ö", f"{body}.{signature}x", f"x{link}", link[:-2], "\ud800.x"]
    others += [f"{body}.{signature[:-1]}{'A' if signature[-1] != 'A' else 'Q'}"]
    for other in others:
        with pytest.raises(LinkRefused, match="signature"):
            links.read(other, 0)


def test_a_link_without_a_key_says_which_setting_is_missing() -> None:
    with pytest.raises(LinkRefused, match="FLOWENGINE_LINK_KEYS"):
        AnswerLinks().sign(ANSWER)
    with pytest.raises(LinkRefused, match="signature"):
        AnswerLinks().read("a.b", 0)


def test_a_value_that_makes_the_link_too_long_is_refused() -> None:
    long = LinkedAnswer("f00", "approval", "eva", 1_000, True, "x" * 8_000)
    with pytest.raises(LinkRefused, match="leave the value out"):
        AnswerLinks("key").sign(long)
