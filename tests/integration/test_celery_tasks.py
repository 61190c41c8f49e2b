"""An existing Celery task becomes an event facet unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from flowengine import RunFailed, event_facet, workflow
from flowengine.testing import Flow

app = Celery("shop", broker="memory://", set_as_current=False)
CALLS: list[str] = []


@app.task(name="shop.tasks.greet")
def greet(name: str) -> str:
    return f"hello {name}"


@app.task(bind=True, name="shop.tasks.charge", max_retries=2, default_retry_delay=7)
def charge(self: Any, cents: int) -> str:
    try:
        raise ConnectionError("away")
    except ConnectionError as error:
        raise self.retry(exc=error) from error


@app.task(
    name="shop.tasks.flaky",
    autoretry_for=(ConnectionError,),
    max_retries=2,
    default_retry_delay=7,
    time_limit=30,
)
def flaky(kind: str) -> str:
    CALLS.append(kind)
    if kind == "other":
        raise ValueError("not worth another try")
    if len(CALLS) < 3:
        raise ConnectionError("away")
    return "done"


greet_facet = event_facet(task_list="hello")(greet)
charge_facet = event_facet(charge)
flaky_facet = event_facet(flaky)


@workflow
def greeting(name: str) -> str:
    return greet_facet(name)


@workflow
def charging(cents: int) -> str:
    return charge_facet(cents)


@workflow
def trying(kind: str) -> str:
    return flaky_facet(kind)


def test_a_task_keeps_its_name_and_takes_options() -> None:
    assert greet_facet.name == "shop.tasks.greet"
    assert greet_facet.options.task_list == "hello"
    with Flow() as flow:
        assert flow.run(greeting, "ada") == "hello ada"


def test_autoretry_becomes_the_retry_policy() -> None:
    assert flaky_facet.options.retry.attempts == 3
    assert flaky_facet.options.timeout == 30
    CALLS.clear()
    with Flow() as flow:
        before = flow.clock.now
        assert flow.run(trying, "away") == "done"
        assert flow.clock.now - before == 14_000
    assert len(CALLS) == 3


def test_an_error_that_celery_would_not_retry_is_not_retried() -> None:
    CALLS.clear()
    with Flow() as flow, pytest.raises(RunFailed, match="not worth another try"):
        flow.run(trying, "other")
    assert len(CALLS) == 1


def test_retry_in_a_bound_task_ends_the_try_with_its_error() -> None:
    with Flow() as flow, pytest.raises(RunFailed, match="ConnectionError: away"):
        flow.run(charging, 3)


def test_called_as_before_it_is_the_task_it_was() -> None:
    assert greet("bob") == "hello bob"
    assert app.tasks["shop.tasks.greet"].name == "shop.tasks.greet"
