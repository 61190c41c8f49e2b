"""RabbitMQ with PostgreSQL, and Redis with SQLite, behave like Redis with PostgreSQL.

On RabbitMQ there is no Redis at all: results go by `rpc://`, which refuses chords, so every
join is counted in SQL. On SQLite the workers of one machine share a file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_celery import (
    CELERY_RABBITMQ_BROKER,
    CELERY_REDIS_BACKEND,
    CELERY_REDIS_BROKER,
    CeleryBackendCluster,
    CeleryTestBroker,
    CeleryTestSetup,
)

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.acceptance.celery.mixed_load import run_under_kills, start_mixed, wait_and_check
from tests.acceptance.celery.rows import check_runs, wait_for
from tests.celery_nodes import Fleet, LocalRabbit, until
from tests.servers import RabbitServer

RABBIT, SQLITE = "rabbitmq and postgresql", "redis and sqlite"


@pytest.fixture(scope="module", params=[RABBIT, SQLITE])
def combination(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def module_fleet(
    combination: str,
    make_fleet: MakeFleet,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    if combination == RABBIT:
        rabbit = LocalRabbit(request.getfixturevalue("shared_rabbit"))
        fleet = make_fleet(broker=rabbit, backend=None)
    else:
        file = tmp_path_factory.mktemp("store") / "flow.db"
        fleet = make_fleet(database_url=f"sqlite:///{file}")
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, wait=False)
    fleet.add_beat()
    yield fleet
    fleet.close()  # before the next combination, not at the end of the module: memory


# --- the plugin's nodes of a combination ---


@pytest.fixture
def default_rabbitmq_broker(shared_rabbit: RabbitServer) -> LocalRabbit:
    return LocalRabbit(shared_rabbit)


@pytest.fixture
def celery_broker(combination: str, request: pytest.FixtureRequest) -> Iterator[CeleryTestBroker]:
    node = CELERY_RABBITMQ_BROKER if combination == RABBIT else CELERY_REDIS_BROKER
    broker: CeleryTestBroker = request.getfixturevalue(node)
    yield broker
    broker.teardown()


@pytest.fixture
def celery_backend_cluster(
    combination: str, request: pytest.FixtureRequest
) -> Iterator[CeleryBackendCluster | None]:
    if combination == RABBIT:
        yield None
        return
    cluster = CeleryBackendCluster(request.getfixturevalue(CELERY_REDIS_BACKEND))
    yield cluster
    cluster.teardown()


# --- undisturbed ---


def test_all_runs_complete_and_record_every_step_once(
    fleet: Fleet, celery_setup: CeleryTestSetup
) -> None:
    assert celery_setup.ready(ping=False, control=True), "workers answer by remote control"
    counters = wait_and_check(fleet, start_mixed(fleet, 12))
    assert (counters.lost, counters.failed) == (0, 0)
    traced = {int(path.name.rpartition("-")[2]) for path in fleet.traces.glob("executions-*")}
    assert all(traced & set(worker.children()) for worker in fleet.workers), "each ran some"


def test_a_wide_loop_is_joined_with_and_without_chords(fleet: Fleet, combination: str) -> None:
    width = 120
    headers = fleet.count_logged("Task flowengine.work")
    run = fleet.start(graphs.wide, numbers=list(range(width)))
    wait_for(fleet.engine, [run], 60)
    counters = check_runs(fleet.engine, {run.id: sum(n * n for n in range(width))}, width + 1)
    assert (counters.lost, counters.failed) == (0, 0)
    if combination == RABBIT:
        assert fleet.count_logged("Task flowengine.work") == headers, "rpc:// refuses chords"
        assert fleet.count_logged("wake-up not sent") == 0
    else:  # bells of earlier runs may have been ahead of it in the queue
        until(lambda: fleet.count_logged("Task flowengine.work") > headers, "a chord's header")


@pytest.mark.chaos
def test_two_hundred_runs_complete(fleet: Fleet) -> None:
    counters = wait_and_check(fleet, start_mixed(fleet, 200), seconds=600)
    assert (counters.lost, counters.failed) == (0, 0)


# --- while processes are killed ---


def test_kills_at_random_moments_lose_no_run_and_record_no_result_twice(
    fleet: Fleet, chaos_seed: int, combination: str
) -> None:
    print(f"\n{combination}:", end="")
    run_under_kills(fleet, chaos_seed, 20, ["child", "worker", "child", "beat"], longest=0.4)


@pytest.mark.chaos
def test_two_hundred_runs_under_many_kills(fleet: Fleet, chaos_seed: int, combination: str) -> None:
    print(f"\n{combination}:", end="")
    plan = [*["child"] * 40, *["worker"] * 12, "beat"]
    run_under_kills(fleet, chaos_seed, 200, plan, longest=1.5)


@pytest.mark.chaos
def test_runs_complete_when_the_broker_restarts_without_its_queues(
    fleet: Fleet, combination: str
) -> None:
    runs = start_mixed(fleet, 40)
    fleet.broker.server.restart()
    counters = wait_and_check(fleet, {**runs, **start_mixed(fleet, 5)}, seconds=120)
    assert (counters.lost, counters.failed) == (0, 0)
    assert all(worker.is_alive() for worker in fleet.workers)
