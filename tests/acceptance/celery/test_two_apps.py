"""Two apps with brokers of their own on one database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance import commands
from tests.acceptance.celery.conftest import QUICK_START
from tests.celery_nodes import Fleet, LocalRedis, LocalWorker, until
from tests.servers import PostgresServer, RedisServer

APP = """
import os
from celery import Celery
from flowengine import Retry, event_facet, sleep, wait_for, workflow
from flowengine.assembly import FlowEngine

app = Celery("{name}", broker=os.environ["FLOWENGINE_BROKER_URL"])
app.conf.broker_connection_retry_on_startup = True
FlowEngine(app)
"""
SLOWLY = """
@event_facet(name="{name}.add"{options})
def add(a: int, b: int) -> int:
    return a + b

@event_facet(name="{name}.fails_once", retry=Retry(attempts=2, first_wait=1){options})
def fails_once(n: int) -> int:
    import pathlib
    trace = pathlib.Path(os.environ["TRACES"], f"{name}-failed-{{n}}")
    if not trace.exists():
        trace.touch()
        raise ConnectionError("once")
    return n

@workflow(name="{name}.slowly")
def slowly(n: int) -> int:
    rested = sleep(2)
    return add.after(rested)(n, fails_once(n))
"""
#: Both apps have it, at other lines and with other code.
SHARED = """
@event_facet(name="shared.total")
def total(n: int) -> int:
    return {result}

@workflow(name="{name}.asks")
def asks(n: int) -> int:
    return total.after(wait_for("go", str))(n)
"""


@pytest.fixture
def fleet(postgres: PostgresServer, shared_redis: RedisServer, tmp_path: Path) -> Iterator[Fleet]:
    """Nodes of several apps on one database; the environment has the broker of app `one`."""
    shared_redis.start()
    shared_redis.flush()
    database = postgres.new_database()
    fleet = Fleet(tmp_path, broker=LocalRedis(shared_redis), backend=None, database_url=database)
    yield fleet
    fleet.close()
    postgres.drop_database(database)


def app(name: str, *, options: str = "", result: str = "") -> dict[str, bytes]:
    shared = SHARED.format(name=name, result=result) if result else ""
    text = APP.format(name=name) + SLOWLY.format(name=name, options=options) + shared
    return {f"{name}.py": text.encode()}


def add(
    fleet: Fleet, name: str, redis: RedisServer, *, wait: bool = True, as_: str = "", **how: str
) -> LocalWorker:
    """Add a worker of an app. The broker of the app `two` is another database of the Redis."""
    broker = LocalRedis(redis, vhost=3) if name == "two" else LocalRedis(redis)
    return fleet.add_worker(
        as_ or name,
        *QUICK_START,
        app=name,
        content=app(name, **how),
        wait=wait,
        FLOWENGINE_BROKER_URL=broker.url,
        FLOWENGINE_RESULT_BACKEND="",
    )


def start(fleet: Fleet, name: str, n: int, workflow: str = "slowly") -> str:
    """Start a run as a client of the app does."""
    done = commands.flowengine(
        ["-A", name, "run", f"{name}:{workflow}", "-i", f"n={n}", "--no-wait"],
        fleet.directory / name,
        fleet.environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("options", ["", ", task_list='of_one'"], ids=["one list", "own lists"])
def test_a_run_goes_on_while_another_app_makes_the_passes_of_recovery(
    fleet: Fleet, shared_redis: RedisServer, options: str
) -> None:
    add(fleet, "two", shared_redis)  # the first one: no other makes passes while it lives
    add(fleet, "one", shared_redis, options=options)
    run_ids = [start(fleet, "one", n) for n in range(3)]
    for run_id in run_ids:
        until(lambda r=run_id: fleet.engine.get(r).is_final, "the end of the run", seconds=40)
        assert fleet.engine.get(run_id).state == "COMPLETED"


def test_a_run_of_an_app_without_workers_has_an_alarm(
    fleet: Fleet, shared_redis: RedisServer
) -> None:
    add(fleet, "two", shared_redis)
    one = add(fleet, "one", shared_redis)
    one.terminate()
    one.wait()
    run_id = start(fleet, "one", 1)
    alarm = until(lambda: fleet.engine.get(run_id).alarm, "the alarm")
    assert "waits for a worker of task list 'default' that has the code of" in alarm
    one.start()
    until(lambda: fleet.engine.get(run_id).is_final, "the end of the run")


def test_other_code_for_a_facet_of_another_app_is_refused_with_both_places(
    fleet: Fleet, shared_redis: RedisServer
) -> None:
    one = add(fleet, "one", shared_redis, result="n + 1")
    two = add(fleet, "two", shared_redis, result="n + 2", wait=False)
    assert two.wait(60) == 1
    (line,) = [text for text in two.logs().splitlines() if "is refused" in text]
    assert "of app 'two' is refused: worker one@" in line
    at = app("one", result="")["one.py"].count(b"\n") + 2
    assert f"'shared.total' is at two:{at} here, and at one:{at} there" in line
    assert one.is_alive()
    one.terminate()
    one.wait()
    two.start()  # the other one is gone


def test_other_code_is_refused_while_runs_of_a_stopped_app_wait(
    fleet: Fleet, shared_redis: RedisServer
) -> None:
    """They would be executed by the code of the app that starts."""
    one = add(fleet, "one", shared_redis, result="n + 1")
    one.terminate()
    one.wait()
    run_id = start(fleet, "one", 1, "asks")  # it waits for a message, and calls the facet then
    two = add(fleet, "two", shared_redis, result="n + 2", wait=False)
    assert two.wait(60) == 1
    (line,) = [text for text in two.logs().splitlines() if "is refused" in text]
    assert "of app 'one' has stopped, had other code" in line
    assert f"{run_id} of one.asks" in line
    at = app("one", result="")["one.py"].count(b"\n") + 2
    assert f"'shared.total' is at two:{at} here, and at one:{at} there" in line
    own = start(fleet, "two", 1, "asks")  # of the app itself: no reason to refuse its workers
    fleet.engine.run(run_id).send("go", "now")
    one.start()
    until(lambda: fleet.engine.get(run_id).is_final, "the end of the run")
    assert fleet.engine.get(run_id).outputs == {"result": 2}
    one.terminate()
    one.wait()
    two.start()
    fleet.engine.run(own).send("go", "now")
    until(lambda: fleet.engine.get(own).is_final, "the end of the run")
    assert fleet.engine.get(own).outputs == {"result": 3}


def test_the_same_code_in_two_apps_is_one_facet(fleet: Fleet, shared_redis: RedisServer) -> None:
    add(fleet, "one", shared_redis, result="n + 1")
    add(fleet, "two", shared_redis, result="n + 1")


def test_a_deploy_that_changes_a_facet_starts_beside_the_old_worker(
    fleet: Fleet, shared_redis: RedisServer
) -> None:
    add(fleet, "one", shared_redis, result="n + 1")
    add(fleet, "one", shared_redis, result="n * 2", options=", priority=3", as_="new")
