"""Fixtures of all tests. A server starts when the first test asks for it."""

from __future__ import annotations

import gc
import random
import shutil
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.examples_drawn  # noqa: F401 - before any test module draws one
from flowengine.store import Database, upgrade_schema
from tests.certificates import Certificates, make_certificates
from tests.servers import PostgresServer, RabbitServer, RedisServer
from tests.warm import share_server

pytest.register_assert_rewrite("tests.corpus")
gc.disable()  # modules and items live to the end: scanning them took a third of the collection

CHAOS_SEED = pytest.StashKey[int]()  #: the first, or the one that was given
CHAOS_SEEDS = pytest.StashKey[int]()  #: how many

#: Fixtures that have each database as a parameter.
_OF_DATABASES = frozenset({"database_url", "opened"})

#: Files that take a minute and more. They come first: one that came last would keep one process
#: busy while the others have nothing left to do.
LONG = (
    "test_examples",
    "test_embedded",
    "test_documents",
    "test_outages",
    "test_combinations",
    "test_ported_project",
    "test_named_database",
    "test_two_apps",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos-seed",
        type=int,
        help="the seed of tests that inject faults at random (default: another each time)",
    )
    parser.addoption(
        "--chaos-seeds",
        type=int,
        default=10,
        help="how many seeds the chaos run has, if none is given (default: %(default)s)",
    )
    parser.addoption(
        "--other-database",
        action="store_true",
        help="run what a plain run leaves out: tests on the other one of the two databases",
    )


def pytest_configure(config: pytest.Config) -> None:
    given: int | None = config.getoption("--chaos-seed")
    config.stash[CHAOS_SEEDS] = 1 if given is not None else config.getoption("--chaos-seeds")
    if given is None:
        # Processes of xdist have the seed of the one that prints it.
        inherited = getattr(config, "workerinput", {}).get("chaos_seed")
        given = random.randrange(1_000_000) if inherited is None else inherited
    config.stash[CHAOS_SEED] = given
    if config.getoption("numprocesses", None):  # several processes, and this one starts them
        share_server()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["chaos_seed"] = node.config.stash[CHAOS_SEED]


@pytest.hookimpl(trylast=True)  # behind -k and -m: `-k sqlite` leaves nothing to choose from
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _choose_databases(config, items)
    _spread(items)


def _choose_databases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one database of each test that has both, by its name; the other is for the long run.

    PostgreSQL is kept by every third: it takes twice the time. Tests of the store's own promises
    are marked `each_database` and keep both, and so do those of the long run.
    """
    pairs: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("each_database") or item.get_closest_marker("chaos"):
            continue
        if _OF_DATABASES.intersection(getattr(getattr(item, "callspec", None), "params", ())):
            test = item.nodeid.replace("sqlite", "").replace("postgresql", "")
            pairs[test].append(item)
    others = {
        item
        for test, pair in pairs.items()
        for item in pair
        if len(pair) == 2
        if ("postgresql" in item.nodeid) != (zlib.crc32(test.encode()) % 3 == 0)
    }
    is_other = config.getoption("--other-database")
    config.hook.pytest_deselected(items=[item for item in items if (item in others) != is_other])
    items[:] = [item for item in items if (item in others) == is_other]


def _spread(items: list[pytest.Item]) -> None:
    """Spread files that wait for processes evenly among files that compute.

    Run in parallel, the former leave a core idle and the latter need more than there are.
    """
    files: defaultdict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    waits = [path for path in files if "acceptance" in path.parts]
    waits.sort(key=lambda path: path.stem not in LONG)  # stable: otherwise as collected
    computes = [path for path in files if "acceptance" not in path.parts]
    places = {
        path: (n + 0.5) / len(part) for part in (waits, computes) for n, path in enumerate(part)
    }
    items[:] = [item for path in sorted(files, key=places.__getitem__) for item in files[path]]


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> str:
    return f"chaos seed: {config.stash[CHAOS_SEED]}"


@pytest.fixture(scope="session")
def chaos_seed(request: pytest.FixtureRequest) -> int:
    """The seed of everything random in this run; printed, so that it can be given again."""
    return request.config.stash[CHAOS_SEED]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A private PostgreSQL server, shared by the tests of this run."""
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def with_schema(postgres: PostgresServer) -> str:
    """The name of a database with our tables: a copy is there sooner than the tables are made."""
    database = Database(postgres.new_database())
    upgrade_schema(database)
    database.close()
    return str(database.url.database)


@pytest.fixture(scope="session")
def file_with_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with our tables, to be copied for the same reason."""
    path = tmp_path_factory.mktemp("schema") / "flow.db"
    database = Database(f"sqlite:///{path}")
    upgrade_schema(database)
    database.close()  # the last connection: it moves the write-ahead log into the file
    return path


def _new_database(request: pytest.FixtureRequest, with_schema: bool) -> Iterator[str]:
    # Asked for here and not in the signature, so that SQLite needs no server.
    server: PostgresServer = request.getfixturevalue("postgres")
    template = request.getfixturevalue("with_schema") if with_schema else "template1"
    url = server.new_database(template)
    yield url
    server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of the test's own without any runs, once of each kind we support."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("file_with_schema"), tmp_path / "flow.db")
        yield f"sqlite:///{tmp_path}/flow.db"
    else:
        yield from _new_database(request, with_schema=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The same without our tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/flow.db"
    else:
        yield from _new_database(request, with_schema=False)


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """A private Redis for fixtures that outlive a test; tests want `redis_server`."""
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
def redis_server(shared_redis: RedisServer) -> RedisServer:
    """A private Redis, running and empty, whatever the test before did to it."""
    shared_redis.start()
    shared_redis.flush()
    return shared_redis


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates for servers at `localhost`."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def shared_rabbit(certificates: Certificates) -> Iterator[RabbitServer]:
    """A private RabbitMQ. It starts slowly, so keep the tests that want it in few files."""
    server = RabbitServer(certificates)
    yield server
    server.stop()
