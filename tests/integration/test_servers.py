"""The servers the tests stand on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.each_database


def engine_for(url: str) -> Engine:
    return create_engine(url, poolclass=NullPool)


def test_each_kind_of_database_keeps_what_is_committed(database_url: str) -> None:
    engine = engine_for(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE kept (word VARCHAR(10))"))
        connection.execute(text("INSERT INTO kept VALUES ('yes')"))
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT word FROM kept")) == "yes"


def test_postgres_is_as_durable_as_in_production(postgres: PostgresServer) -> None:
    with engine_for(postgres.url).connect() as connection:
        assert connection.scalar(text("SHOW fsync")) == "on"
        assert connection.scalar(text("SHOW synchronous_commit")) == "on"
        assert connection.scalar(text("SHOW full_page_writes")) == "on"


def test_a_new_database_sees_nothing_of_the_others(postgres: PostgresServer) -> None:
    one, other = engine_for(postgres.new_database()), engine_for(postgres.new_database())
    with one.begin() as connection:
        connection.execute(text("CREATE TABLE secret (id INTEGER)"))
    assert inspect(one).get_table_names() == ["secret"]
    assert inspect(other).get_table_names() == []


def test_a_dropped_database_is_gone_even_while_somebody_is_connected(
    postgres: PostgresServer,
) -> None:
    url = postgres.new_database()
    with engine_for(url).connect() as lingering:
        lingering.execute(text("SELECT 1"))
        postgres.drop_database(url)
        with pytest.raises(OperationalError):
            lingering.execute(text("SELECT 1"))
        lingering.invalidate()
    with pytest.raises(OperationalError, match="does not exist"):
        engine_for(url).connect()


def test_redis_answers(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.ping()


def test_a_restarted_redis_is_empty_and_at_the_same_address(redis_server: RedisServer) -> None:
    url = redis_server.url
    with redis.Redis.from_url(url) as client:
        client.set("key", "value")
    redis_server.restart()
    assert redis_server.url == url
    with redis.Redis.from_url(url) as client:
        assert client.get("key") is None


def test_a_stopped_redis_refuses_until_it_is_started_again(redis_server: RedisServer) -> None:
    redis_server.stop()
    with redis.Redis.from_url(redis_server.url) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    redis_server.start()
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.ping()


STARTS_SERVERS_AND_WAITS = """
from tests.servers import PostgresServer, RedisServer

postgres, redis = PostgresServer(), RedisServer()
print(postgres.directory, redis.directory, flush=True)
input()
"""


def test_a_killed_test_run_leaves_no_server_behind() -> None:
    # The directory is removed by the guard after its server has ended, so its
    # absence says that both are gone.
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_SERVERS_AND_WAITS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        directories = [Path(name) for name in run.stdout.readline().split()]
        assert [directory.exists() for directory in directories] == [True, True]
        os.kill(run.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(directory.exists() for directory in directories):
        assert time.monotonic() < deadline, f"still there: {directories}"
        time.sleep(0.01)
