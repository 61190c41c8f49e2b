"""Which servers the watchdog of a fleet declares dead, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from sqlalchemy import event

from flowengine import event_facet, workflow
from flowengine.engine import Engine
from flowengine.engine.liveness import LivenessWindow
from flowengine.engine.recovery import observe, recover_lost_servers
from flowengine.engine.watchdog import Watchdog
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Succeeded
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.store.servers import ServerDefinition
from tests.integration.engines import opened


@event_facet
def slow(n: int) -> int:
    return n


@workflow
def one(n: int) -> int:
    return slow(n)


SETTINGS = Settings(watchdog_interval=1, heartbeat_interval=10, server_timeout=30)


def _server(name: str) -> ServerDefinition:
    return ServerDefinition(name, "default", "worker", name, boot_id=name, handlers=["f"])


@dataclass
class Fleet:
    """A database, watchdogs in many processes, and servers that send heartbeats on demand."""

    now: int = 1_000_000
    engine: Engine = field(init=False)

    def register(self, name: str) -> ServerDefinition:
        server = _server(name)
        server.start_time = server.ping_time = self.now
        with self.engine.database.write() as session:
            session.servers.register(server)
        self.beat(name)
        return server

    def beat(self, name: str) -> None:
        with self.engine.database.write() as session:
            session.servers.record_heartbeat(_server(name), self.now)

    def alive(self) -> set[str]:
        with self.engine.database.read() as session:
            return {server.uuid for server in session.servers.alive()}

    def tick(self, seconds: int, *watchdogs: Watchdog) -> None:
        """Let the next of these watchdogs tick each second."""
        for second in range(seconds):
            self.now += 1000
            assert watchdogs[second % len(watchdogs)].tick()


@pytest.fixture
def fleet(database_url: str) -> Iterator[Fleet]:
    fleet = Fleet()
    with opened(database_url, clock=lambda: fleet.now, settings=SETTINGS) as engine:
        fleet.engine = engine
        yield fleet


def test_a_silent_server_is_declared_dead_though_each_process_gets_few_ticks(fleet: Fleet) -> None:
    fleet.register("silent")
    pool = [Watchdog(fleet.engine) for _ in range(40)]
    fleet.tick(29, *pool)
    assert fleet.alive() == {"silent"}
    fleet.tick(3, *pool)
    assert fleet.alive() == set()


def test_a_gap_between_passes_declares_no_server_dead(fleet: Fleet) -> None:
    fleet.register("one")
    watchdog = Watchdog(fleet.engine)
    fleet.tick(10, watchdog)
    fleet.now += 600_000  # the database was unreachable, or the laptop asleep
    fleet.tick(20, watchdog)
    assert fleet.alive() == {"one"}
    fleet.beat("one")
    fleet.tick(25, watchdog)
    assert fleet.alive() == {"one"}


def test_a_gap_shorter_than_the_timeout_restarts_the_count(fleet: Fleet) -> None:
    fleet.register("one")
    watchdog = Watchdog(fleet.engine)
    fleet.tick(35, watchdog)
    fleet.register("two")
    fleet.now += 12_000
    fleet.tick(25, watchdog)
    assert "two" in fleet.alive(), "25 seconds after the gap"


def test_a_dead_server_that_sends_a_heartbeat_is_alive_again(fleet: Fleet) -> None:
    fleet.register("stopped")
    watchdog = Watchdog(fleet.engine)
    fleet.tick(35, watchdog)
    assert fleet.alive() == set()
    fleet.beat("stopped")
    assert fleet.alive() == {"stopped"}
    fleet.tick(25, watchdog)
    assert fleet.alive() == {"stopped"}
    fleet.tick(10, watchdog)
    assert fleet.alive() == set(), "and is recovered like any other"


def test_two_ticks_in_one_interval_are_one(fleet: Fleet) -> None:
    one, other = Watchdog(fleet.engine), Watchdog(fleet.engine)
    fleet.tick(1, one)
    fleet.now += 100
    assert not other.tick()
    assert not one.tick()
    fleet.now += 900
    assert other.tick()


# --- holders of tasks that are not registered as alive ---


def _claim(fleet: Fleet, boot_id: str) -> TaskDefinition:
    fleet.engine.start(one.program(), one.name, {"n": 1})
    (task,) = fleet.engine.claim(
        [slow.name], "default", WorkerIdentity(boot_id, boot_id, 7), most=1
    )
    return task


def _losses(fleet: Fleet, task: TaskDefinition) -> list[int]:
    return [found.losses for found in fleet.engine.tasks(task.workflow_id)]


def test_a_task_that_a_revived_server_claims_before_its_heartbeat_is_recovered(
    fleet: Fleet,
) -> None:
    fleet.register("stopped")
    watchdog = Watchdog(fleet.engine)
    fleet.tick(35, watchdog)
    assert fleet.alive() == set()
    task = _claim(fleet, "stopped")  # it revives, claims, and is killed at once
    fleet.tick(29, watchdog)
    assert _losses(fleet, task) == [0], "it may still send a heartbeat"
    fleet.tick(3, watchdog)
    assert _losses(fleet, task) == [0, 1]


@pytest.mark.parametrize("registered", [True, False], ids=["deregistered", "never registered"])
def test_a_task_that_an_unregistered_server_claims_is_recovered(
    fleet: Fleet, registered: bool
) -> None:
    if registered:
        server = fleet.register("absent")
        with fleet.engine.database.write() as session:
            session.servers.deregister(server.uuid)
    task = _claim(fleet, "absent")
    fleet.tick(35, Watchdog(fleet.engine))
    assert _losses(fleet, task) == [0, 1]


def test_a_poller_that_sends_heartbeats_keeps_its_task(fleet: Fleet) -> None:
    task = _claim(fleet, "poller")
    watchdog = Watchdog(fleet.engine)
    for _ in range(20):
        fleet.tick(5, watchdog)
        assert fleet.engine.heartbeat(task)
    assert _losses(fleet, task) == [0]
    fleet.tick(35, watchdog)
    assert _losses(fleet, task) == [0, 1]


@pytest.mark.parametrize("moment", ["flowengine_server", "max(activity)"])
def test_a_task_that_is_claimed_during_the_recovery_of_its_server_is_kept(
    fleet: Fleet, moment: str
) -> None:
    """It reports its task and claims another one between two queries of the recovery."""
    before = _claim(fleet, "busy")
    fleet.tick(1, Watchdog(fleet.engine))
    fleet.now += 60_000
    signs: list[TaskDefinition] = []

    def work_on(_c: object, _cursor: object, sql: str, *_: object) -> None:
        if moment in sql and not signs:
            signs.append(before)
            assert fleet.engine.report(before, Succeeded({"result": 1}))
            signs.append(_claim(fleet, "busy"))

    long_ago = fleet.now - 30_000
    listened = fleet.engine.database.engine
    event.listen(listened, "after_cursor_execute", work_on)
    try:
        with fleet.engine.database.read() as session:
            observation = observe(session, LivenessWindow(fleet.now))
        recover_lost_servers(
            fleet.engine,
            observation,
            lambda server: "is silent" if server.ping_time < long_ago else None,
        )
    finally:
        event.remove(listened, "after_cursor_execute", work_on)
    assert len(signs) == 2
    assert _losses(fleet, signs[1]) == [0]


def test_a_heartbeat_during_the_declaration_of_death_keeps_a_server_alive(fleet: Fleet) -> None:
    fleet.register("slow")
    fleet.tick(20, Watchdog(fleet.engine))
    with fleet.engine.database.read() as session:
        (found,) = session.servers.alive()
    fleet.beat("slow")
    with fleet.engine.database.write() as session:
        session.servers.mark_dead(found)
    assert fleet.alive() == {"slow"}
