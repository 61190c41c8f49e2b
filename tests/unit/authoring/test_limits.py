"""Limits, rates and retries as options of decorated functions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowengine import Cache, GiveUp, Limit, Rate, Retry, RetryAfter, event_facet, workflow
from flowengine.errors import AuthoringError, InvalidProgram
from flowengine.program import link_program
from flowengine.program.event_options import RetryPolicy


def test_a_facet_takes_one_limit_or_several() -> None:
    @event_facet(
        name="l.one", limit=Limit("customer:{customer}", 2), rate=[Rate("mail", 100, per=60)]
    )
    def send(customer: str) -> None: ...

    assert send.options.limit == (Limit("customer:{customer}", 2),)
    assert send.options.rate == (Rate("mail", 100, per=60.0),)


def test_a_limit_key_that_names_no_argument_is_refused_where_it_is_written() -> None:
    with pytest.raises(AuthoringError) as caught:

        @event_facet(limit=Limit("customer:{custmer}", 2))
        def send(customer: str) -> None: ...

    text = str(caught.value)
    assert "test_limits.py:" in text
    assert "names 'custmer', which is no parameter; did you mean 'customer'?" in text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"limit": "customer"}, "limit='customer' is not a Limit(…), or a list of them"),
        ({"rate": Rate("a", 5, per=-1)}, "per=-1.0 is not a number of seconds above 0"),
        ({"retry": Retry(attempts=2, on=3)}, "retry.on=3 is not a list of exception classes"),  # type: ignore[arg-type]
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(AuthoringError) as caught:

        @event_facet(**options)  # type: ignore[call-overload]
        def send() -> None: ...

    assert problem in str(caught.value)


def test_a_call_has_options_of_its_own() -> None:
    @event_facet(name="l.fetch", retry=Retry(attempts=2))
    def fetch(attempts: int) -> int:
        return attempts

    @workflow(name="l.both")
    def both() -> int:
        first = fetch(1)
        policy = Retry(attempts=9, jitter=0.5, never_on=(ValueError,))
        return fetch.with_options(retry=policy, timeout=3)(first)

    plan = link_program(both.program())
    first, second = (s for s in plan.statements.values() if s.target == fetch.name)
    assert first.options.retry == RetryPolicy(2)
    assert second.options.retry == RetryPolicy(9, jitter=0.5, never_on=("ValueError",))
    assert second.options.timeout == 3.0
    assert fetch.with_options(timeout=1)(4) == 4  # plain Python outside a workflow


def test_options_of_a_call_are_checked_at_once() -> None:
    @event_facet(name="l.once")
    def fetch() -> None: ...

    with pytest.raises(AuthoringError, match=r"timeout=-1 is not a number of seconds above 0"):
        fetch.with_options(timeout=-1)


def test_errors_for_another_try_take_sensible_values_only() -> None:
    assert str(RetryAfter(2.5)) == "to be tried again after 2.5 s"
    assert str(GiveUp("no such customer")) == "no such customer"
    with pytest.raises(ValueError, match="0 or more"):
        RetryAfter(-1)
    with pytest.raises(TypeError, match="a number of seconds"):
        RetryAfter("soon")  # type: ignore[arg-type]


def test_a_facet_takes_a_cache_with_a_key_and_an_age() -> None:
    @event_facet(name="l.rate", cache=Cache("rates:{currency}", timedelta(hours=1)))
    def rate(currency: str) -> int:
        return len(currency)

    assert rate.options.cache == Cache("rates:{currency}", 3600)
    assert Cache("a", 3600) == Cache("a", 3600.0), "one content hash"


@pytest.mark.parametrize(
    ("cache", "problem"),
    [
        ("rates", "cache='rates' is not a Cache(key, max_age)"),
        (Cache("", 60), "cache: the key '' is not a text"),
        (Cache("a", timedelta(-1)), "cache 'a': max_age=-86400.0 is not a number of seconds above"),
        (Cache("a", 0), "cache 'a': max_age=0.0 is not a number of seconds above 0"),
        (Cache("a:{custmer}", 60), "which is no parameter; did you mean 'customer'?"),
        (Cache("a:{", 60), "cache: the key 'a:{' is not a text with names of parameters in braces"),
    ],
)
def test_a_cache_that_cannot_work_is_refused(cache: Any, problem: str) -> None:
    with pytest.raises(AuthoringError) as caught:

        @event_facet(cache=cache)
        def rate(customer: str) -> int:
            return 1

    assert problem in str(caught.value)


def test_a_cache_with_a_list_in_its_key_is_refused_before_a_run_begins() -> None:
    @event_facet(name="l.sum", cache=Cache("sum:{numbers}", 60))
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @workflow(name="l.sums")
    def sums() -> int:
        return total([1, 2])

    with pytest.raises(InvalidProgram, match="'numbers', which is a list: a key has texts"):
        link_program(sums.program())


def test_a_cache_of_a_facet_without_result_is_refused() -> None:
    with pytest.raises(AuthoringError, match="the facet has no result that could be kept"):

        @event_facet(cache=Cache("a", 60))
        def send() -> None: ...
