"""Breakers as described in a decorator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flowengine import AuthoringError, Breaker, event_facet, workflow
from flowengine.authoring import breaker_named
from flowengine.program import parse_program, program_text, write_program
from tests.registries import empty_registry

DESCRIBED = Breaker("bank", failure_threshold=2)


@pytest.fixture(autouse=True)
def empty_names() -> Iterator[None]:
    with empty_registry():
        yield


def test_the_program_contains_only_the_name_of_a_breaker() -> None:
    @event_facet(name="t.named", breaker="bank")
    def named(n: int) -> int:
        return n

    @event_facet(name="t.described", breaker=DESCRIBED)
    def described(n: int) -> int:
        return n

    @workflow(name="t.both")
    def both(n: int) -> int:
        return described(named(n))

    assert named.options.breaker == described.options.breaker == "bank"
    assert '"breaker":"bank"' in program_text(both.program())
    assert "failure_threshold" not in program_text(both.program())
    assert parse_program(write_program(both.program())) == both.program()


def test_a_breaker_has_the_description_of_any_of_its_facets() -> None:
    assert breaker_named("bank") == Breaker("bank")
    event_facet(name="t.named", breaker="bank")(_one)
    assert breaker_named("bank") == Breaker("bank")
    event_facet(name="t.described", breaker=DESCRIBED)(_one)
    assert breaker_named("bank") is DESCRIBED


def test_two_descriptions_of_one_breaker_are_refused_naming_both_facets() -> None:
    event_facet(name="t.first", breaker=DESCRIBED)(_one)
    event_facet(name="t.same", breaker=DESCRIBED)(_one)
    with pytest.raises(AuthoringError, match=r"'t\.second'.* and .*'t\.first'.* breaker 'bank'"):
        event_facet(name="t.second", breaker=Breaker("bank", failure_threshold=3))(_one)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": " "}, "the name must be text of 1 to 200 characters"),
        ({"failure_threshold": 0}, "failure_threshold=0 is not a whole number, 1 or more"),
        ({"half_open_max_calls": True}, "half_open_max_calls=True is not a whole number"),
        ({"success_threshold": 1.5}, "success_threshold=1.5 is not a whole number"),
        ({"timeout_seconds": 0}, "timeout_seconds=0 is not a number of seconds up to 3600"),
        ({"recovery_timeout_seconds": float("nan")}, "recovery_timeout_seconds=nan is not"),
        ({"ignore": ValueError}, "ignore=<class 'ValueError'> is not a tuple of exception classes"),
    ],
)
def test_an_invalid_breaker_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(AuthoringError, match=message):
        Breaker(**{"name": "bank", **wrong})


def _one(n: int) -> int:
    return n
