"""Redis and PostgreSQL are stopped, emptied or hung in the middle of runs, and come back."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, SOON, MakeFleet
from tests.acceptance.celery.rows import check_runs, wait_for
from tests.celery_nodes import Fleet, LocalWorker, RestartablePostgres, until


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet, postgres_away: RestartablePostgres) -> Fleet:
    fleet = make_fleet(database_url=postgres_away.new_database())
    for name in ("first", "second"):
        fleet.add_worker(name, wait=False)
    fleet.add_beat()
    return fleet


class Outage:
    """Outages of some seconds. Their length is what is tested, so it is slept."""

    def __init__(self, fleet: Fleet, postgres: RestartablePostgres) -> None:
        self.fleet, self.postgres = fleet, postgres

    def redis(self, seconds: float) -> None:
        self.fleet.broker.server.stop()
        time.sleep(seconds)
        self.fleet.broker.server.start()

    def redis_emptied(self, seconds: float) -> None:
        self.fleet.broker.server.flush()

    def postgres_stopped(self, seconds: float) -> None:
        self.postgres.go_away()
        time.sleep(seconds)
        self.postgres.come_back()

    def postgres_hung(self, seconds: float) -> None:
        self.postgres.freeze()
        time.sleep(seconds)
        self.postgres.thaw()

    def both(self, seconds: float) -> None:
        self.fleet.broker.server.stop()
        self.postgres.go_away()
        time.sleep(seconds)
        self.fleet.broker.server.start()
        self.postgres.come_back()


OUTAGES = ["redis", "redis_emptied", "postgres_stopped", "postgres_hung", "both"]


@pytest.mark.parametrize(
    "kind", [*OUTAGES[:3], *(pytest.param(kind, marks=pytest.mark.chaos) for kind in OUTAGES[3:])]
)
def test_runs_and_workers_survive_an_outage(
    fleet: Fleet, postgres_away: RestartablePostgres, kind: str
) -> None:
    pids = [worker.pid for worker in fleet.workers]
    runs = {fleet.start(graphs.mixed, n=n).id: graphs.expected(n) for n in range(8)}
    held = fleet.start(graphs.held, name=kind)
    until(lambda: fleet.begun(kind), "the start of the step")
    getattr(Outage(fleet, postgres_away), kind)(2.0)
    fleet.let_go(kind)
    later = {fleet.start(graphs.mixed, n=n).id: graphs.expected(n) for n in range(3)}
    handles = [fleet.engine.run(run_id) for run_id in {**runs, **later}]
    wait_for(fleet.engine, [*handles, held], 60)
    counters = check_runs(fleet.engine, runs | later, graphs.TASKS)
    assert counters.failed == 0
    assert held.result() == fleet.begun(kind)[0], "no worker died, so no step ran twice"
    assert counters.lost == 0
    assert [worker.pid for worker in fleet.workers if worker.is_alive()] == pids


def test_workers_survive_the_loss_of_their_broker_with_unacknowledged_messages(
    fleet: Fleet,
) -> None:
    pids = [worker.pid for worker in fleet.workers]
    holds = [fleet.start(graphs.held, name=f"busy{n}") for n in range(4)]
    until(lambda: all(fleet.begun(f"busy{n}") for n in range(4)), "four busy children")
    runs = {fleet.start(graphs.mixed, n=n).id: graphs.expected(n) for n in range(4)}
    for _ in range(4):  # the wake-ups of the starts were debounced
        fleet.app.send_task("flowengine.drain", ("default",), queue="default", ignore_result=True)
    with fleet.broker.client as client:
        until(lambda: client.hlen("unacked") >= 2, "messages that wait for a pool child")
    noticed = fleet.count_logged("Connection to broker lost")
    fleet.broker.server.stop()
    until(lambda: fleet.count_logged("Connection to broker lost") >= noticed + 2, "the loss")
    for n in range(4):
        fleet.let_go(f"busy{n}")
    fleet.broker.server.start()
    handles = [fleet.engine.run(run_id) for run_id in runs]
    wait_for(fleet.engine, [*holds, *handles], 60)
    check_runs(fleet.engine, runs, graphs.TASKS)
    assert [worker.pid for worker in fleet.workers if worker.is_alive()] == pids


def test_a_start_does_not_wait_for_the_broker(fleet: Fleet) -> None:
    fleet.broker.server.stop()
    began = time.monotonic()
    run = fleet.start(graphs.mixed, n=5)
    chord = fleet.start(graphs.wide, numbers=list(range(200)))
    took = time.monotonic() - began
    fleet.broker.server.start()
    assert took < SOON, f"two starts took {took:.1f} s"
    assert run.result(timeout=40) == graphs.expected(5)
    assert chord.result(timeout=40) == sum(n * n for n in range(200))


def held_by(fleet: Fleet, name: str) -> tuple[Any, LocalWorker]:
    run = fleet.start(graphs.held_then_added, name=name)
    (pid,) = until(lambda: fleet.begun(name), "the start of the step")
    (worker,) = [worker for worker in fleet.workers if pid in worker.children()]
    return run, worker


def spooled(worker: LocalWorker) -> list[Path]:
    """Spooled reports of held steps."""
    waiting = (worker.directory / "flowengine-spool").glob("*.json")
    return [path for path in waiting if "held_then_added.hold" in path.read_text()]


def test_a_report_is_spooled_while_the_database_is_unreachable(
    fleet: Fleet, postgres_away: RestartablePostgres
) -> None:
    run, worker = held_by(fleet, "spooled")
    poison = worker.directory / "flowengine-spool" / "0-1.json"
    poison.parent.mkdir(exist_ok=True)
    poison.write_text('{"run_id": "gone", "task_id": "0", "lease": 1, "path": "gone", ')
    postgres_away.go_away()
    fleet.let_go("spooled")
    until(lambda: spooled(worker), "a spooled report")
    postgres_away.come_back()
    assert run.result(timeout=30) == fleet.begun("spooled")[0]
    assert [(task.state, task.losses) for task in fleet.engine.tasks(run.id)] == [
        ("completed", 0),
        ("completed", 0),
    ]
    until(lambda: not spooled(worker), "an empty spool")
    assert poison.with_suffix(".undeliverable").exists(), "a broken report does not stop the others"


def test_an_outage_is_one_line_at_its_begin_and_one_at_its_end_in_each_process(
    fleet: Fleet, postgres_away: RestartablePostgres
) -> None:
    began, ended = "an outage of the database begins", "the outage of the database has ended"
    fleet.start(graphs.mixed, n=1).result(timeout=30)
    until(lambda: fleet.count_logged(began) == fleet.count_logged(ended), "the end of others")
    before, traces = fleet.count_logged(began), fleet.count_logged("Traceback")
    processes = len(fleet.workers) + sum(len(worker.children()) for worker in fleet.workers)
    postgres_away.go_away()
    until(lambda: fleet.count_logged(began) > before, "its begin")
    for _ in range(60):
        fleet.app.send_task("flowengine.drain", ("default",), queue="default", ignore_result=True)
    time.sleep(2.0)  # some ticks of the beat
    postgres_away.come_back()
    run = fleet.start(graphs.wide, numbers=list(range(200)))  # messages for all children
    run.result(timeout=30)
    until(lambda: fleet.count_logged(began) == fleet.count_logged(ended), "its end")
    assert 1 <= fleet.count_logged(began) - before <= processes
    assert fleet.count_logged("Traceback") == traces


def test_the_beat_logs_one_line_when_the_broker_goes_away_and_one_when_it_is_back(
    fleet: Fleet,
) -> None:
    (beat,) = fleet.beats
    lost, back = "tick of the watchdog not sent", "the broker accepts wake-ups again"
    before = len(beat.logs())
    fleet.broker.server.stop()
    until(lambda: lost in beat.logs()[before:], "its begin")
    time.sleep(3.0)  # ten ticks
    fleet.broker.server.start()
    until(lambda: back in beat.logs()[before:], "its end")
    lines = [line for line in beat.logs()[before:].splitlines() if "Sending due" not in line]
    assert [lost in line or back in line for line in lines] == [True, True], lines


def test_an_outage_longer_than_its_timeout_fails_no_try_that_sends_heartbeats(
    fleet: Fleet, postgres_away: RestartablePostgres
) -> None:
    names = [f"heartbeats{n}" for n in range(4)]
    runs = {name: fleet.start(graphs.held_with_heartbeats, name=name) for name in names}
    until(lambda: all(fleet.begun(name) for name in names), "four busy children")
    postgres_away.go_away()
    time.sleep(2.5)
    for name in names[:2]:
        fleet.let_go(name)  # finished, and spooled
    time.sleep(2.5)
    postgres_away.come_back()
    assert [runs[name].result(timeout=30) for name in names[:2]] == [
        fleet.begun(name)[0] for name in names[:2]
    ]
    time.sleep(4)  # twice the timeout
    for name in names[2:]:
        fleet.let_go(name)
    for name in names:
        assert runs[name].result(timeout=30) == fleet.begun(name)[0]
        assert [task.state for task in fleet.engine.tasks(runs[name].id)] == ["completed"]


def test_a_spooled_report_survives_its_worker(
    fleet: Fleet, postgres_away: RestartablePostgres
) -> None:
    run, worker = held_by(fleet, "inherited")
    postgres_away.go_away()
    fleet.let_go("inherited")
    until(lambda: spooled(worker), "a spooled report")
    worker.kill()
    worker.start()  # it waits for the database
    postgres_away.come_back()
    assert run.result(timeout=30) == fleet.begun("inherited")[0]
    assert [(task.state, task.losses) for task in fleet.engine.tasks(run.id)] == [
        ("completed", 0),
        ("completed", 0),
    ]
    assert len(fleet.begun("inherited")) == 1


def test_a_start_message_that_arrives_while_the_database_is_unreachable_is_not_lost(
    fleet: Fleet, postgres_away: RestartablePostgres
) -> None:
    postgres_away.go_away()
    what = (graphs.mixed.name, {"n": 4})
    fleet.app.send_task(
        "flowengine.execute", what, task_id="early", queue="flowengine", ignore_result=True
    )
    until(lambda: fleet.count_logged("flowengine.execute[early] received"), "its arrival")
    postgres_away.come_back()

    def found() -> list[str]:
        return [info.id for info in fleet.engine.list(limit=200) if info.key == "early"]

    (run_id,) = until(found, "the start")
    assert fleet.engine.run(run_id).result(timeout=30) == graphs.expected(4)


def test_a_worker_that_is_alone_for_too_long_finishes_what_it_runs_and_ends_with_1(
    make_fleet: MakeFleet, postgres_away: RestartablePostgres
) -> None:
    fleet = make_fleet(database_url=postgres_away.new_database())
    worker = fleet.add_worker("alone", *QUICK_START, FLOWENGINE_ALONE_PATIENCE="1")
    held_by(fleet, "lonely")
    postgres_away.go_away()
    until(lambda: fleet.count_logged("longer than alone_patience"), "its decision")
    assert worker.is_alive(), "it finishes what it runs"
    fleet.let_go("lonely")
    assert worker.wait(30) == 1
    assert spooled(worker), "the report is kept, and delivered by another process"
    postgres_away.come_back()


@pytest.mark.chaos
def test_two_hundred_runs_through_many_outages(
    fleet: Fleet, postgres_away: RestartablePostgres, chaos_seed: int
) -> None:
    lots = random.Random(chaos_seed)
    pids = [worker.pid for worker in fleet.workers]
    outage = Outage(fleet, postgres_away)
    runs: dict[str, Any] = {}
    happened = []
    for _ in range(20):
        for n in range(10):
            runs[fleet.start(graphs.mixed, n=n).id] = graphs.expected(n)
        kind = lots.choice(OUTAGES)
        time.sleep(lots.uniform(0, 1.5))
        getattr(outage, kind)(lots.uniform(0.1, 8))
        happened.append(kind)
    wait_for(fleet.engine, [fleet.engine.run(run_id) for run_id in runs], 600)
    counters = check_runs(fleet.engine, runs, graphs.TASKS)
    print(f"\nseed {chaos_seed}: {happened}; {counters}")
    assert [worker.pid for worker in fleet.workers if worker.is_alive()] == pids
