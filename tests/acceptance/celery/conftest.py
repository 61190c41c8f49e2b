"""The fixtures of pytest-celery on processes of this machine instead of containers.

A module's tests share one fleet where they can: `fleet` is two workers with two pool
children each and a beat; before each test everything that the last one killed is restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import kombu.pools
import pytest
from pytest_celery import (
    CELERY_REDIS_BROKER,
    CeleryTestBroker,
    CeleryTestWorker,
    CeleryWorkerCluster,
)

from tests.acceptance.celery import graphs
from tests.celery_nodes import (
    Fleet,
    GuardedProcess,
    LocalRedis,
    LocalWorker,
    RestartablePostgres,
    clean_environment,
)
from tests.celery_nodes.containers import write_files
from tests.celery_nodes.fleet import INTERVALS
from tests.servers import PostgresServer, RedisServer

GRAPHS = graphs.__name__
QUICK_START = ("--without-mingle", "--without-gossip")  #: spares a second at each start
#: Seconds within which something happens that needs a tenth of them on an idle machine, and that
#: waited for minutes or for ever before it was mended.
SOON = 15.0
#: Seconds within which a worker ends that was asked to, and whose steps have ended. Celery waits
#: for 30 seconds where a shutdown goes wrong, so the limit is below that.
SHUTDOWN = 25.0
pytest.register_assert_rewrite(
    *(f"tests.acceptance.celery.{name}" for name in ("agent_load", "attack", "mixed_load", "rows"))
)


# --- the plugin's nodes ---


@pytest.fixture
def redis_node(request: pytest.FixtureRequest, shared_redis: RedisServer) -> RedisServer:
    """Redis, empty for a test with workers of its own; a fleet's may still carry messages."""
    shared_redis.start()
    if "fleet" not in request.fixturenames:
        # Connections to this address are pooled for all apps; those to a Redis that was killed
        # meanwhile are no good.
        kombu.pools.reset()
        shared_redis.flush()
    return shared_redis


@pytest.fixture
def default_redis_broker(redis_node: RedisServer) -> LocalRedis:
    return LocalRedis(redis_node)


@pytest.fixture
def default_redis_backend(redis_node: RedisServer) -> LocalRedis:
    return LocalRedis(redis_node, vhost=1)


@pytest.fixture(params=[CELERY_REDIS_BROKER])
def celery_broker(request: pytest.FixtureRequest) -> Iterator[CeleryTestBroker]:
    broker: CeleryTestBroker = request.getfixturevalue(request.param)
    yield broker
    broker.teardown()


@pytest.fixture
def default_worker_container_cls() -> type[LocalWorker]:
    return LocalWorker


@pytest.fixture(scope="session")
def default_worker_container_session_cls() -> type[LocalWorker]:
    return LocalWorker


@pytest.fixture
def default_worker_tasks(default_worker_container_cls: type[LocalWorker]) -> set[ModuleType]:
    return {*default_worker_container_cls.tasks_modules(), graphs}


@pytest.fixture
def default_worker_env(
    default_worker_container_cls: type[LocalWorker],
    celery_worker_cluster_config: dict[str, Any],
    default_worker_tasks: set[ModuleType],
    own_database: str,
    tmp_path: Path,
) -> dict[str, str]:
    found = default_worker_container_cls.initial_env(celery_worker_cluster_config)
    return {
        **clean_environment(),
        **INTERVALS,
        **found,
        "FLOWENGINE_BROKER_URL": found["CELERY_BROKER_URL"],
        "FLOWENGINE_RESULT_BACKEND": found["CELERY_RESULT_BACKEND"],
        "FLOWENGINE_DATABASE_URL": own_database,
        "FLOWENGINE_IMPORTS": ",".join(sorted(module.__name__ for module in default_worker_tasks)),
        "TRACES": str(tmp_path),
    }


@pytest.fixture
def default_worker_container(
    default_worker_container_cls: type[LocalWorker],
    default_worker_command: list[str],
    default_worker_env: dict[str, str],
    default_worker_initial_content: dict[str, bytes],
    tmp_path: Path,
) -> Iterator[LocalWorker]:
    """A worker of the test's own, with the plugin's files in its directory."""
    directory = tmp_path / "worker"
    write_files(directory, default_worker_initial_content)
    process = GuardedProcess(
        default_worker_command,
        name="worker",
        directory=directory,
        environment=default_worker_env,
        ready_prompt="ready.",
    )
    process.start()
    yield default_worker_container_cls(process)
    process.stop()


@pytest.fixture
def own_database(postgres: PostgresServer, with_schema: str) -> Iterator[str]:
    """A database without any runs."""
    url = postgres.new_database(with_schema)
    yield url
    postgres.drop_database(url)


# --- a fleet ---

MakeFleet = Callable[..., Fleet]


@pytest.fixture(scope="module")
def make_fleet(
    postgres: PostgresServer, shared_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeFleet]:
    """Make fleets without nodes; they are closed after the module."""
    made: list[Fleet] = []

    def make(imports: str = GRAPHS, **options: Any) -> Fleet:
        if "broker" not in options:
            shared_redis.start()
            shared_redis.flush()
            options["broker"] = LocalRedis(shared_redis)
            options["backend"] = LocalRedis(shared_redis, vhost=1)
        if "database_url" not in options:
            options["database_url"] = postgres.new_database()
        fleet = Fleet(tmp_path_factory.mktemp("fleet"), imports=imports, **options)
        made.append(fleet)
        return fleet

    yield make
    for fleet in made:
        fleet.close()


@pytest.fixture(scope="module")
def postgres_away() -> Iterator[RestartablePostgres]:
    """A PostgreSQL of the module's own, which its tests stop, freeze and restart."""
    server = RestartablePostgres()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet) -> Fleet:
    fleet = make_fleet()
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, wait=False)
    fleet.add_beat()
    return fleet


@pytest.fixture
def fleet(module_fleet: Fleet, shared_redis: RedisServer) -> Iterator[Fleet]:
    """Two workers and a beat, all running."""
    shared_redis.start()
    module_fleet.heal()
    yield module_fleet
    module_fleet.let_all_go()


@pytest.fixture
def celery_worker_cluster(request: pytest.FixtureRequest) -> Iterator[CeleryWorkerCluster]:
    """The fleet's workers, for a test that has one; else a worker of the test's own."""
    if "fleet" in request.fixturenames:
        app = request.getfixturevalue("celery_setup_app")
        fleet: Fleet = request.getfixturevalue("fleet")
        workers = [CeleryTestWorker(container, app=app) for container in fleet.workers]
    else:
        workers = [request.getfixturevalue("celery_setup_worker")]
    cluster = CeleryWorkerCluster(*workers)
    yield cluster
    cluster.teardown()
