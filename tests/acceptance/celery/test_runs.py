"""Two workers with two pool children each, a beat, Redis and PostgreSQL."""

from __future__ import annotations

import json
import time
from typing import Any

import redis
from pytest_celery import CeleryTestSetup
from sqlalchemy import text

from flowengine.engine import Run
from tests.acceptance.celery import graphs, rare
from tests.acceptance.celery.conftest import SHUTDOWN
from tests.acceptance.celery.mixed_load import start_mixed, wait_and_check
from tests.celery_nodes import Fleet, until


def test_all_runs_complete_and_record_every_step_once(
    fleet: Fleet, celery_setup: CeleryTestSetup
) -> None:
    runs = start_mixed(fleet, 12)
    counters = wait_and_check(fleet, runs)
    assert (counters.lost, counters.failed) == (0, 0)
    traced = {int(path.name.rpartition("-")[2]) for path in fleet.traces.glob("executions-*")}
    assert all(traced & set(worker.children()) for worker in fleet.workers), "each ran some"
    assert all(worker.container.is_alive() for worker in celery_setup.worker_cluster)


def test_printed_and_logged_lines_of_a_step_in_a_pool_child_are_kept_once(fleet: Fleet) -> None:
    """Celery redirects streams to a logger, and its loggers of tasks do not propagate."""
    run = fleet.start(graphs.told, n=5)
    children = [child for worker in fleet.workers for child in worker.children()]
    assert run.result(timeout=30) in children
    kept = [(line.stream, line.logger, line.text) for line in run.logs()]
    assert kept == [("stdout", "", "printed 5"), ("log", "shop.tasks", "logged 5")]


def test_messages_stay_below_4_kib_whatever_the_run_carries(fleet: Fleet) -> None:
    sizes: list[int] = []
    largest = ""
    with redis.Redis.from_url(fleet.broker.url) as client, client.monitor() as monitor:
        run = fleet.start(graphs.wide, numbers=list(range(500)))
        assert run.result(timeout=60) == sum(n * n for n in range(500))
        mark = "the run has ended"
        with redis.Redis.from_url(fleet.broker.url) as other:
            other.echo(mark)
        for entry in monitor.listen():
            if mark in entry["command"]:
                break
            name, _, rest = entry["command"].partition(" ")
            if name in ("LPUSH", "RPUSH"):
                _queue, _, message = rest.partition(" ")
                json.loads(message)
                sizes.append(len(message))
                largest = max(message, largest, key=len)
    assert len(sizes) > 10, "too few messages to judge"
    assert max(sizes) < 4096, largest
    print(f"{len(sizes)} messages, the largest of {max(sizes)} bytes")


def test_a_start_message_that_arrives_twice_starts_one_run(
    fleet: Fleet, celery_setup: CeleryTestSetup
) -> None:
    app = celery_setup.app  # is given the broker and nothing else
    name = graphs.mixed.name
    sent = [
        app.send_task("flowengine.execute", args=(name, {"n": 7}), task_id="the-same-message")
        for _ in range(2)
    ]
    assert {result.id for result in sent} == {"the-same-message"}
    query = text("SELECT id FROM flowengine_run WHERE idempotency_key = 'the-same-message'")

    def found() -> list[str]:
        with fleet.engine.database.read() as connection:
            return list(connection.execute(query).scalars())

    (run_id,) = until(found, "the start")
    check = {run_id: graphs.expected(7)}
    wait_and_check(fleet, check)
    handled = "flowengine.execute[the-same-message] succeeded"
    until(lambda: fleet.count_logged(handled) == 2, "the answer to both messages")
    assert found() == [run_id]


def test_a_facet_without_a_worker_raises_an_alarm_until_one_starts(fleet: Fleet) -> None:
    run = fleet.start(rare.weighing, grams=4)
    alarm = str(until(lambda: run.info().alarm, "an alarm"))
    assert "waits for a worker" in alarm
    assert rare.weigh.name in alarm
    other = fleet.add_worker("rare", FLOWENGINE_IMPORTS=rare.__name__)
    assert run.result(timeout=20) == 5
    assert run.info().alarm is None
    other.stop()
    fleet.workers.remove(other)


def test_two_beats_cause_no_more_recovery_than_one(fleet: Fleet) -> None:
    second = fleet.add_beat("second-beat")
    arrived = "Task flowengine.watchdog"
    began, before = time.monotonic(), fleet.count_logged(arrived)
    ticks: set[int] = set()
    query = text("SELECT until FROM flowengine_lock WHERE name = 'watchdog'")

    def twelve_leases() -> bool:
        with fleet.engine.database.read() as connection:
            ticks.add(connection.execute(query).scalar_one())
        return len(ticks) == 12

    until(twelve_leases, "twelve leases of the watchdog", pause=0.02)
    lasted = time.monotonic() - began
    messages = (fleet.count_logged(arrived) - before) / 2  # each is received, and succeeds
    second.stop()
    fleet.beats.remove(second)
    print(f"{messages:g} messages of two beats, {len(ticks)} looks in {lasted:.1f} s")
    assert messages > 1.2 * len(ticks), "workers received the ticks of both beats"
    assert lasted > (len(ticks) - 2) * 0.27, "one lease for each interval"


def begin_holding(fleet: Fleet, name: str) -> tuple[Run[Any], Any]:
    """Start a run whose step waits in a worker; return both."""
    run = fleet.start(graphs.held_then_added, name=name)
    (pid,) = until(lambda: fleet.begun(name), "the start of the step")
    (worker,) = [worker for worker in fleet.workers if pid in worker.children()]
    return run, worker


def tries(run: Run[Any], fleet: Fleet) -> list[tuple[str, int, int]]:
    return [(t.state, t.try_number, t.losses) for t in fleet.engine.tasks(run.id)]


def test_a_worker_that_gets_SIGTERM_finishes_its_running_step(fleet: Fleet) -> None:
    run, worker = begin_holding(fleet, "terminated")
    (pid,) = fleet.begun("terminated")
    worker.terminate()
    until(lambda: "Warm shutdown" in worker.logs(), "its warm shutdown")
    others = start_mixed(fleet, 3)
    wait_and_check(fleet, others)
    fleet.let_go("terminated")
    assert worker.wait(SHUTDOWN) == 0
    assert run.result(timeout=20) == pid
    assert tries(run, fleet) == [("completed", 1, 0)] * 2


def test_a_worker_that_gets_SIGQUIT_releases_its_running_step(fleet: Fleet) -> None:
    run, worker = begin_holding(fleet, "quit")
    worker.kill("SIGQUIT")
    worker.wait(SHUTDOWN)
    pids = until(lambda: len(fleet.begun("quit")) == 2 and fleet.begun("quit"), "another try")
    fleet.let_go("quit")
    assert run.result(timeout=20) == pids[1]


def test_the_late_report_of_a_suspended_worker_is_refused(fleet: Fleet) -> None:
    run, worker = begin_holding(fleet, "frozen")
    worker.freeze()
    pids = until(lambda: len(fleet.begun("frozen")) == 2 and fleet.begun("frozen"), "another try")
    assert pids[1] not in worker.children()
    fleet.let_go("frozen")
    assert run.result(timeout=20) == pids[1]
    refused = fleet.count_logged("refused a late report")
    worker.thaw()
    until(lambda: fleet.count_logged("refused a late report") == refused + 1, "the refusal")
    assert run.result() == pids[1]
    assert [state for state, _, _ in tries(run, fleet)] == ["failed", "completed", "completed"]

    # Its registration is valid again: its tasks are recovered when it dies.
    again, other = begin_holding_on(fleet, worker, "woken")
    other.kill()
    until(lambda: len(fleet.begun("woken")) >= 2, "another try")
    fleet.let_go("woken")
    again.result(timeout=20)


def begin_holding_on(fleet: Fleet, wanted: Any, name: str) -> tuple[Run[Any], Any]:
    """The same on a given worker: the other one is suspended meanwhile."""
    (other,) = [worker for worker in fleet.workers if worker is not wanted]
    other.freeze()
    try:
        run, worker = begin_holding(fleet, name)
    finally:
        other.thaw()
    assert worker is wanted
    return run, worker


def test_a_step_that_kills_its_process_is_tried_again_and_no_other_step_is(fleet: Fleet) -> None:
    others = start_mixed(fleet, 5)
    run = fleet.start(graphs.deadly, times=3)
    assert run.result(timeout=30) == 3
    states = [(t.name.rpartition(".")[2], t.state, t.losses) for t in fleet.engine.tasks(run.id)]
    assert states == [
        *(("die_first", "failed", losses) for losses in range(3)),
        ("die_first", "completed", 3),
        ("add", "completed", 0),
    ]
    wait_and_check(fleet, others)
    assert all(worker.is_alive() for worker in fleet.workers)
    assert json.dumps(run.info().outputs) == '{"result": 3}'
