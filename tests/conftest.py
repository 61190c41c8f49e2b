"""What every test may ask for. A server starts when the first test asks for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.examples_drawn  # noqa: F401 - before any test module draws one
from tests.servers import PostgresServer, RabbitServer, RedisServer

pytest.register_assert_rewrite("tests.corpus")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos-seed",
        type=int,
        default=random.randrange(1_000_000),
        help="what tests that kill things at random draw from (default: another each time)",
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"chaos seed: {config.getoption('--chaos-seed')}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A private PostgreSQL server, shared by the tests of this run."""
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of the test's own, once of each kind we support."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/flow.db"
        return
    # Asked for here and not in the signature, so that SQLite needs no server.
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.new_database()
    yield url
    server.drop_database(url)


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
def shared_rabbit() -> Iterator[RabbitServer]:
    """A private RabbitMQ. It starts slowly, so keep the tests that want it in few files."""
    server = RabbitServer()
    yield server
    server.stop()
