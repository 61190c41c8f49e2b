"""Circuit breakers for people: their states, tasks that they park, overrides and resets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis import Redis

from flowengine import Breaker, Retry, event_facet, workflow
from flowengine.cli import main
from flowengine.errors import ValueRefused
from flowengine.settings import Settings
from flowengine.testing import Flow
from flowengine.worker import CircuitBreakers
from tests.servers import RedisServer

BANK = "the bank"
CALLS: list[int] = []
DOWN: list[bool] = []


@event_facet(
    name="guarded.pay",
    breaker=Breaker(BANK, failure_threshold=3, timeout_seconds=60),
    retry=Retry(attempts=1),
)
def pay(n: int) -> int:
    CALLS.append(n)
    if DOWN:
        raise ConnectionError("the bank is down")
    return n


@workflow(name="guarded.one")
def one(n: int) -> int:
    return pay(n)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    CALLS.clear()
    DOWN.clear()
    with Flow(store_url=database_url) as flow:
        yield flow


def info(flow: Flow) -> Any:
    (found,) = flow.engine.breakers.list()
    return found


@pytest.mark.each_database
def test_a_breaker_that_is_held_open_parks_its_tasks_until_it_is_reset(flow: Flow) -> None:
    flow.engine.breakers.hold_open(BANK, actor="eva", reason="they asked for it")
    run = one.start(1)
    flow.settle()
    assert CALLS == []
    found = info(flow)
    assert (found.name, found.state, found.parked) == (BANK, "held open", 1)
    assert (found.set_by, found.set_reason) == ("person:eva", "they asked for it")
    flow.clock.advance(seconds=120)
    flow.settle()
    assert CALLS == [], "it stays open whatever its own timeout"
    flow.engine.breakers.reset(BANK, actor="ada")
    flow.clock.advance(seconds=120)
    flow.settle()
    assert run.result(timeout=0) == 1
    assert flow.engine.breakers.list() == []
    assert {(each.action, each.actor) for each in flow.engine.actions()} == {
        ("reset breaker", "person:ada"),
        ("open breaker", "person:eva"),
    }


@pytest.mark.each_database
def test_a_threshold_that_is_set_counts_in_place_of_that_of_the_code(flow: Flow) -> None:
    DOWN.append(True)
    one.start(1)
    flow.settle()
    flow.engine.breakers.set(BANK, failure_threshold=2, timeout=600)
    flow.clock.advance(seconds=10)
    runs = [one.start(n) for n in (2, 3)]
    flow.settle()
    assert CALLS == [1, 2], "the second failure has opened it"
    found = info(flow)
    assert (found.state, found.parked, found.failure_threshold, found.timeout) == (None, 1, 2, 600)
    DOWN.clear()
    flow.clock.advance(seconds=90)
    flow.settle()
    assert CALLS == [1, 2], "nor is it probed after the timeout of the code"
    flow.clock.advance(seconds=600)
    flow.settle()
    assert [run.state for run in runs] == ["FAILED", "COMPLETED"]


def test_a_wrong_override_is_refused(flow: Flow) -> None:
    for wrong in ({"failure_threshold": 0}, {"timeout": 0}, {"timeout": 4000}, {}):
        with pytest.raises(ValueRefused):
            flow.engine.breakers.set(BANK, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueRefused, match="nothing of the circuit breaker 'the bank' is set"):
        flow.engine.breakers.reset(BANK)


def test_the_state_of_a_shared_breaker_is_shown_and_reset(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Redis.from_url(redis_server.url).flushall()
    url = f"sqlite:///{tmp_path}/flow.db"
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", url)
    monkeypatch.setenv("FLOWENGINE_BREAKER_REDIS_URL", redis_server.url)
    CALLS.clear()
    with Flow(store_url=url) as flow:
        breakers = CircuitBreakers(Settings(breaker_redis_url=redis_server.url))
        breakers.obey(flow.engine.breakers)
        (task,) = flow.engine.tasks(one.start(1).id)
        for _ in range(3):
            permit = breakers.permit(task)
            with pytest.raises(ConnectionError), permit:
                raise ConnectionError("down")
        assert not breakers.permit(task).granted

    def run(*words: str, expect: int = 0) -> str:
        result = CliRunner().invoke(main, ["breakers", *words], env={"COLUMNS": "200"})
        assert result.exit_code == expect, result.output
        return result.output

    (shown,) = json.loads(run("list", "--json"))
    assert (shown["name"], shown["state"], shown["failures"]) == (BANK, "open", 3)
    assert "obeyed within 5 s" in run("set", BANK, "--failures", "9", "--actor", "eva")
    line = run().splitlines()[1]
    assert "open" in line
    assert "9 failures" in line
    assert "person:eva" in line
    assert "obeyed within" in run("open", BANK)
    assert "held open" in run()
    assert run("reset", BANK).endswith("has the values of its code, and is closed\n")
    assert breakers.shared_state(BANK).state == "closed"
    run("set", BANK, expect=2)
