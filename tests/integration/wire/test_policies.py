"""Retries, circuit breakers and wake-ups of other processes hold for agents over the wire, too."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine import Retry, event_facet, workflow
from flowengine.authoring import Breaker
from flowengine.engine import Engine
from flowengine.sdk.pace import PollPace
from tests.integration.engines import one, opened
from tests.integration.sdk.pollers import WAIT, until
from tests.integration.wire.clients import Client, Wire
from tests.integration.wire.test_tasks import in_background, waiting


@event_facet(name="policies.tried", retry=Retry(attempts=3, first_wait=0))
def tried(n: int) -> int:
    raise AssertionError


@event_facet(name="policies.guarded", breaker=Breaker("policies", failure_threshold=1))
def guarded(n: int) -> int:
    raise AssertionError


@workflow(name="policies.tries")
def tries(n: int) -> int:
    return tried(n)


@workflow(name="policies.guards")
def guards(n: int) -> int:
    return guarded(n)


def started(engine: Engine, a_workflow: Any) -> Any:
    return engine.start(a_workflow.program(), a_workflow.name, {"n": 1})


def test_a_failed_try_is_repeated_as_the_facet_declares(engine: Engine, client: Client) -> None:
    run = started(engine, tries)
    client.register("policies.tried")
    for number in (1, 2):
        (task,) = client.claim(wait_seconds=WAIT)
        assert task["try_number"] == number
        assert client.report(task, "fail", error={"message": "again"})[0] == 200
    (task,) = client.claim(wait_seconds=WAIT)
    assert client.report(task, "continue", result={"result": 5})[0] == 200
    assert run.result(timeout=WAIT) == 5


def test_an_error_that_is_not_retryable_ends_the_step(engine: Engine, client: Client) -> None:
    run = started(engine, tries)
    client.register("policies.tried")
    (task,) = client.claim()
    assert client.report(task, "fail", error={"message": "never"}, retryable=False)[0] == 200
    assert engine.get(run.id).state == "FAILED"
    assert len(engine.tasks(run.id)) == 1


def test_the_time_that_an_agent_asks_for_is_waited(engine: Engine, client: Client) -> None:
    run = started(engine, tries)
    client.register("policies.tried")
    (task,) = client.claim()
    client.report(task, "fail", error={}, retry_after_seconds=3600)
    assert client.claim() == []
    again = engine.tasks(run.id)[-1]
    assert again.due - again.created >= 3_500_000


def test_an_open_circuit_breaker_parks_tasks_before_an_agent_gets_them(
    engine: Engine, client: Client
) -> None:
    first, second = (started(engine, guards) for _ in range(2))
    client.register("policies.guarded")
    (task,) = client.claim()
    client.report(task, "fail", error={"type": "Timeout503", "message": "the service is down"})
    assert client.claim() == []
    states = {engine.get(run.id).state for run in (first, second)}
    assert states == {"FAILED", "RUNNING"}
    (waits,) = [run for run in (first, second) if engine.get(run.id).state == "RUNNING"]
    assert engine.get(waits.id).waits_for is not None
    assert str(engine.get(waits.id).waits_for.kind.value) == "circuit"  # type: ignore[union-attr]


def test_a_waiting_claim_is_woken_by_another_process(
    on_postgres: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an interval of an hour only a notification can bring the task in time."""
    monkeypatch.setattr(PollPace, "pause", lambda self, **_: 3_600.0)
    url = on_postgres.database.url.render_as_string(hide_password=False)
    with Wire(on_postgres) as wire, opened(url) as other:
        client = wire.client("node", ["claim"])
        client.register()
        until(wire.server._is_notified)
        thread, answers = in_background(lambda: client.claim(wait_seconds=WAIT))
        until(lambda: waiting(wire) == 1 and not wire.server._operations.claims._serving)
        run = other.start(one(), "t.Flow", {"x": 1})
        thread.join(WAIT)
        assert [task["run_id"] for (task,) in answers] == [run.id]
