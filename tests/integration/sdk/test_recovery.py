"""Recovery knows pollers as servers, and a poller stands in for workers that recover."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.dispatch import NullNotifier
from flowengine.engine import Engine
from flowengine.evaluator.triggers import Succeeded
from flowengine.sdk import AgentPoller
from flowengine.sdk.stand_in import PollerStandIn
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.store.servers import POLLER
from flowengine.worker.spool import Spool, spool_record
from tests.integration.engines import MovedClock, claim, one, opened, replace_notifier
from tests.integration.sdk.pollers import WAIT, started
from tests.integration.sdk.test_wake_ups import registered

pytestmark = pytest.mark.each_database


def echo(payload: dict[str, Any]) -> dict[str, Any]:
    return {"y": payload["x"]}


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def engine(clock: MovedClock, tmp_path: Path) -> Iterator[Engine]:
    """On one database: the statements of recovery have tests of their own."""
    settings = Settings(spool_directory=str(tmp_path / "spool"))
    with opened(f"sqlite:///{tmp_path}/flow.db", clock=clock, settings=settings) as engine:
        yield engine


def test_pollers_deliver_spooled_reports(database_url: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with opened(database_url, settings=Settings(spool_directory=str(spool))) as engine:
        runs = [engine.start(one(), "t.Flow", {"x": n}) for n in range(2)]
        for _ in runs:
            task = claim(engine)
            outcome = Succeeded({"y": (task.data or {})["x"]})
            Spool(spool).write(spool_record(task, outcome))
        poller = AgentPoller(engine)
        poller.register("t.Other", echo)
        assert poller.poll_once() == 0
        assert [run.result(timeout=WAIT) for run in runs] == [{"y": 0}, {"y": 1}]

        last = engine.start(one(), "t.Flow", {"x": 2})
        Spool(spool).write(spool_record(claim(engine), Succeeded({"y": 2})))
        with started(poller):
            assert last.result(timeout=WAIT) == {"y": 2}


def test_a_poller_that_died_in_poll_once_is_recovered_too(
    engine: Engine, clock: MovedClock
) -> None:
    run = engine.start(one(), "t.Flow", {"x": 1})
    dead = WorkerIdentity("gone", "d" * 32, 1)
    assert engine.claim(["t.Work"], "default", dead, most=1)
    stand_in = PollerStandIn()
    for _ in range(70):  # half a second each: a long gap would be taken for an outage
        clock.now += 500
        stand_in.watch(engine)
    again = engine.tasks(run.id)[-1]
    assert (again.state, again.losses) == ("pending", 1)


def ticks(engine: Engine, clock: MovedClock, seconds: int) -> int:
    """Let a poller look after recovery for that time; return how many passes it makes."""
    engine.start(one(), "t.Flow", {"x": 1})  # without any task a pass wakes nobody
    passes: list[int] = []

    class Noted(PollerStandIn):
        def _wake(self, *args: Any) -> None:
            passes.append(clock.now)
            super()._wake(*args)

    stand_in = Noted()
    for _ in range(2 * seconds):
        clock.now += 500
        stand_in.watch(engine)
    return len(passes)


def test_a_poller_among_pollers_recovers_at_every_interval(
    engine: Engine, clock: MovedClock
) -> None:
    registered(engine, "poller", manager=POLLER)
    assert ticks(engine, clock, 30) > 50


def test_a_poller_stands_back_while_workers_live_who_can_send_messages(
    engine: Engine, clock: MovedClock
) -> None:
    registered(engine, "worker", manager="")
    assert 5 <= ticks(engine, clock, 25) <= 10  # only as long as none of them does it


def test_a_poller_with_a_broker_recovers_like_a_worker(engine: Engine, clock: MovedClock) -> None:
    replace_notifier(engine, NullNotifier())
    engine.sends_messages = True
    registered(engine, "worker", manager="")
    assert ticks(engine, clock, 20) > 30
