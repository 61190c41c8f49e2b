"""The watchdog of a fleet: who is taken for dead, by whom, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from sqlalchemy import event

from flowengine import event_facet, workflow
from flowengine.engine import Engine
from flowengine.engine.recovery import recover_lost_servers
from flowengine.engine.watchdog import Watchdog
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Succeeded
from flowengine.settings import Settings
from flowengine.store import servers
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
    """A database, many who may hear a tick, and one server that beats when it is told to."""

    now: int = 1_000_000
    engine: Engine = field(init=False)

    def register(self, name: str) -> ServerDefinition:
        server = _server(name)
        server.start_time = server.ping_time = self.now
        with self.engine.database.write() as connection:
            servers.register(connection, server)
        self.beat(name)
        return server

    def beat(self, name: str) -> None:
        with self.engine.database.write() as connection:
            servers.beat(connection, _server(name), self.now)

    def alive(self) -> set[str]:
        with self.engine.database.read() as connection:
            return {server.uuid for server in servers.alive(connection)}

    def tick(self, seconds: int, *watchdogs: Watchdog) -> None:
        """Let each second's tick be heard by the next of these."""
        for second in range(seconds):
            self.now += 1000
            assert watchdogs[second % len(watchdogs)].tick()


@pytest.fixture
def fleet(database_url: str) -> Iterator[Fleet]:
    fleet = Fleet()
    with opened(database_url, clock=lambda: fleet.now, settings=SETTINGS) as engine:
        fleet.engine = engine
        yield fleet


def test_a_silent_server_is_found_dead_though_each_process_hears_few_ticks(fleet: Fleet) -> None:
    fleet.register("silent")
    pool = [Watchdog(fleet.engine) for _ in range(40)]
    fleet.tick(29, *pool)
    assert fleet.alive() == {"silent"}
    fleet.tick(3, *pool)
    assert fleet.alive() == set()


def test_nobody_is_dead_after_a_time_in_which_nobody_looked(fleet: Fleet) -> None:
    fleet.register("one")
    watchdog = Watchdog(fleet.engine)
    fleet.tick(10, watchdog)
    fleet.now += 600_000  # the database was away, or the laptop asleep
    fleet.tick(20, watchdog)
    assert fleet.alive() == {"one"}
    fleet.beat("one")
    fleet.tick(25, watchdog)
    assert fleet.alive() == {"one"}


def test_a_break_is_noticed_long_before_it_could_kill(fleet: Fleet) -> None:
    fleet.register("one")
    watchdog = Watchdog(fleet.engine)
    fleet.tick(35, watchdog)
    fleet.register("two")
    fleet.now += 12_000
    fleet.tick(25, watchdog)
    assert "two" in fleet.alive(), "awake for 25 seconds only"


def test_a_server_that_beats_after_it_was_found_dead_is_alive_again(fleet: Fleet) -> None:
    fleet.register("stopped")
    watchdog = Watchdog(fleet.engine)
    fleet.tick(35, watchdog)
    assert fleet.alive() == set()
    fleet.beat("stopped")
    assert fleet.alive() == {"stopped"}
    fleet.tick(25, watchdog)
    assert fleet.alive() == {"stopped"}
    fleet.tick(10, watchdog)
    assert fleet.alive() == set(), "and looked after like any other"


def test_two_ticks_in_one_interval_are_one(fleet: Fleet) -> None:
    one, other = Watchdog(fleet.engine), Watchdog(fleet.engine)
    fleet.tick(1, one)
    fleet.now += 100
    assert not other.tick()
    assert not one.tick()
    fleet.now += 900
    assert other.tick()


# --- who holds something and is not among the living ---


def _claim(fleet: Fleet, boot_id: str) -> TaskDefinition:
    fleet.engine.start(one.program(), one.name, {"n": 1})
    (task,) = fleet.engine.claim(
        [slow.name], "default", WorkerIdentity(boot_id, boot_id, 7), most=1
    )
    return task


def _losses(fleet: Fleet, task: TaskDefinition) -> list[int]:
    return [found.losses for found in fleet.engine.tasks(task.workflow_id)]


def test_what_a_woken_server_claims_before_it_beats_again_is_not_lost_with_it(
    fleet: Fleet,
) -> None:
    fleet.register("stopped")
    watchdog = Watchdog(fleet.engine)
    fleet.tick(35, watchdog)
    assert fleet.alive() == set()
    task = _claim(fleet, "stopped")  # it wakes up, claims, and is killed at once
    fleet.tick(29, watchdog)
    assert _losses(fleet, task) == [0], "it may still beat"
    fleet.tick(3, watchdog)
    assert _losses(fleet, task) == [0, 1]


@pytest.mark.parametrize("farewell", [True, False], ids=["that has left", "never registered"])
def test_what_a_server_claims_outside_its_life_is_found(fleet: Fleet, farewell: bool) -> None:
    if farewell:
        server = fleet.register("absent")
        with fleet.engine.database.write() as connection:
            servers.leave(connection, server.uuid)
    task = _claim(fleet, "absent")
    fleet.tick(35, Watchdog(fleet.engine))
    assert _losses(fleet, task) == [0, 1]


def test_a_poller_that_beats_for_its_task_keeps_it(fleet: Fleet) -> None:
    task = _claim(fleet, "poller")
    watchdog = Watchdog(fleet.engine)
    for _ in range(20):
        fleet.tick(5, watchdog)
        assert fleet.engine.heartbeat(task)
    assert _losses(fleet, task) == [0]
    fleet.tick(35, watchdog)
    assert _losses(fleet, task) == [0, 1]


@pytest.mark.parametrize("moment", ["flowengine_server", "max(flowengine_task.activity)"])
def test_what_is_claimed_while_the_dead_are_looked_for_is_not_taken(
    fleet: Fleet, moment: str
) -> None:
    """It ends its task, or wakes up, and claims another one, just when it is looked at."""
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
        recover_lost_servers(fleet.engine, lambda server: server.ping_time < long_ago)
    finally:
        event.remove(listened, "after_cursor_execute", work_on)
    assert len(signs) == 2
    assert _losses(fleet, signs[1]) == [0]


def test_a_beat_in_the_moment_it_is_found_dead_keeps_a_server_alive(fleet: Fleet) -> None:
    fleet.register("slow")
    fleet.tick(20, Watchdog(fleet.engine))
    with fleet.engine.database.read() as connection:
        (found,) = servers.alive(connection)
    fleet.beat("slow")
    with fleet.engine.database.write() as connection:
        servers.mark_dead(connection, found)
    assert fleet.alive() == {"slow"}
