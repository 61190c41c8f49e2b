"""A fleet with TLS to Redis and PostgreSQL, and with keys for its messages.

With keys, workers execute signed messages of the engine and no others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from flowengine import signed_message
from flowengine.messaging import CircuitState, SyncCircuitBreaker
from flowengine.worker.breakers import KEY_PREFIX
from flowengine.worker.redis_address import redis_address
from tests.acceptance.celery import graphs, guarded, services
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes import Fleet, LocalRedis, until
from tests.certificates import Certificates, make_certificates
from tests.servers import PostgresServer, RedisServer, free_port

KEY, OLD = "k" * 32, "o" * 32
REFUSED = "without a valid signature"
HERE = "guarded.is_here"


class TlsRedis(LocalRedis):
    """One database of a private Redis, by TLS."""

    def __init__(self, server: RedisServer, port: int, authority: Path, vhost: int = 0) -> None:
        super().__init__(server, vhost)
        self._tls_port, self._authority = port, authority

    @property
    def url(self) -> str:
        tls = f"ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={self._authority}"
        return f"rediss://localhost:{self._tls_port}/{self.vhost}?{tls}"


@pytest.fixture(scope="module")
def tls_redis(certificates: Certificates) -> Iterator[TlsRedis]:
    port = free_port()
    server = RedisServer(
        *("--appendonly", "no", "--tls-port", str(port), "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(certificates.certificate)),
        *("--tls-key-file", str(certificates.key)),
        *("--tls-ca-cert-file", str(certificates.authority)),
    )
    yield TlsRedis(server, port, certificates.authority)
    server.stop()


@pytest.fixture(scope="module")
def tls_database(certificates: Certificates) -> Iterator[str]:
    server = PostgresServer(certificates)
    yield server.new_database()
    server.stop()


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet, tls_redis: TlsRedis, tls_database: str) -> Fleet:
    fleet = make_fleet(
        imports=",".join(module.__name__ for module in (graphs, guarded, services)),
        broker=tls_redis,
        backend=tls_redis,
        database_url=tls_database,
        FLOWENGINE_MESSAGE_KEYS=f"{KEY},{OLD}",
    )
    fleet.add_worker("only", *QUICK_START)
    fleet.add_beat()
    return fleet


# --- TLS ---


def test_every_connection_to_postgresql_is_encrypted(fleet: Fleet) -> None:
    assert fleet.start(guarded.is_here, n=1).result(timeout=30) == 3
    query = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE datname = %s"
    address = fleet.database_url.replace("+psycopg", "")
    with psycopg.connect(address) as connection:
        found = connection.execute(query, [connection.info.dbname]).fetchall()
    assert len(found) > 2, "of this process, and of the worker"
    assert {encrypted for (encrypted,) in found} == {True}


def test_the_breakers_of_a_worker_are_shared_by_tls(fleet: Fleet, tls_redis: TlsRedis) -> None:
    (fleet.traces / "down-payments").touch()
    fleet.start(services.pay_all, numbers=[1, 2, 3])
    with redis.Redis.from_url(redis_address(tls_redis.url)) as client:
        breaker = SyncCircuitBreaker(client, "payments", key_prefix=KEY_PREFIX)
        until(lambda: breaker.snapshot().state is not CircuitState.CLOSED, "an open circuit")
    assert fleet.count_logged("circuit breaker 'payments' is local") == 0
    fleet.let_go("payments")
    (fleet.traces / "down-payments").unlink()


def test_a_server_of_another_authority_is_refused(
    tls_redis: TlsRedis, tls_database: str, tmp_path: Path
) -> None:
    other = str(make_certificates(tmp_path).authority)
    given = str(tls_redis._authority)
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        psycopg.connect(tls_database.replace("+psycopg", "").replace(given, other))
    app = Celery("client", broker=tls_redis.url.replace(given, other), set_as_current=False)
    with pytest.raises(OperationalError, match="certificate verify failed"):
        app.connection_for_write().ensure_connection(max_retries=1, interval_start=0)
    address = redis_address(tls_redis.url.replace(given, other))
    with redis.Redis.from_url(address) as client, pytest.raises(redis.ConnectionError):
        client.ping()


# --- signed messages ---


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Celery]:
    """A client of the broker, without flowengine."""
    app = Celery("stranger", broker=fleet.broker.url, set_as_current=False)
    yield app
    app.close()


def test_signed_wakeups_chords_ticks_and_starts_complete_their_runs(
    fleet: Fleet, client: Celery
) -> None:
    width = 120  # a chord: its headers and its callback are messages too
    wide = fleet.start(graphs.wide, numbers=list(range(width)))
    assert wide.result(timeout=30) == sum(n * n for n in range(width))
    mixed = fleet.start(graphs.mixed, n=1)
    assert mixed.result(timeout=30) == graphs.expected(1)
    for keys in (KEY, OLD):
        sent = signed_message("flowengine.execute", (HERE, {"n": 1}, keys), keys=keys)
        client.send_task(**sent, queue="flowengine")
        (started,) = until(lambda key=keys: with_key(fleet, key), "the run of a signed message")
        assert fleet.engine.run(started.id).result(timeout=30) == 3
    (worker,), (beat,) = fleet.workers, fleet.beats
    until(lambda: "flowengine.evaluate[" in worker.logs(), "the callback of the chord")
    until(lambda: "flowengine.watchdog[" in worker.logs(), "a tick of the beat")
    assert beat.is_alive()
    assert fleet.count_logged(REFUSED) == 0


def test_unsigned_messages_start_nothing_and_few_lines_are_logged(
    fleet: Fleet, client: Celery
) -> None:
    ran = ran_here(fleet)
    protocol_1 = Celery("old", broker=fleet.broker.url, set_as_current=False)
    protocol_1.conf.task_protocol = 1
    start: Any = (HERE, {"n": 1}, "unsigned")
    execute = client.signature("flowengine.execute", app=client)
    callback = client.signature("flowengine.execute", args=start, immutable=True)
    for _ in range(10):
        client.send_task("flowengine.execute", start, queue="flowengine")
        protocol_1.send_task("flowengine.execute", start, queue="flowengine")
        client.send_task("celery.starmap", (execute, [start]), queue="flowengine")
        # A worker publishes the callbacks of any message. It must not sign them.
        client.send_task("celery.accumulate", (1,), link=callback, queue="flowengine")
        client.send_task("flowengine.execute", start, queue="flowengine", headers={"x": "1.0.x"})
        client.send_task("guarded.here", (1,), queue="guarded")
        client.send_task("flowengine.drain", ("guarded",), queue="guarded")
    protocol_1.close()
    honest = fleet.start(guarded.is_here, n=1)
    assert honest.result(timeout=30) == 3
    wait_until_consumed(fleet)
    assert with_key(fleet, "unsigned") == []
    assert ran_here(fleet) == ran + 2, "those of the honest run alone"
    # One line for each of two pool children; another after a minute, on a busy machine.
    assert 1 <= fleet.count_logged(REFUSED) < 10


def test_a_signed_start_that_is_replayed_starts_one_run(fleet: Fleet, client: Celery) -> None:
    for key, replays in ((None, 3), ("mine", 3)):
        args = (HERE, {"n": 7}, key)
        sent = signed_message("flowengine.execute", args, keys=KEY)
        for _ in range(replays):
            client.send_task(**sent, queue="flowengine")
        sent["task_id"] = "another-id"
        client.send_task(**sent, queue="flowengine")
    # Under another name, the same arguments and signature are another message.
    client.send_task(**{**sent, "name": "guarded.here"}, queue="guarded")
    fleet.start(guarded.is_here, n=1).result(timeout=30)
    wait_until_consumed(fleet)
    until(lambda: with_key(fleet, "mine"), "the run of the signed message")
    started = [run for run in fleet.engine.list(limit=500) if run.workflow == HERE]
    keys = [run.key for run in started]
    assert keys.count("mine") == 1
    assert "another-id" not in keys
    replayed = [key for key in keys if key and "-" in key]
    assert len(replayed) == 1, "the id of the message is its key"


def with_key(fleet: Fleet, key: str) -> list[Any]:
    return [run for run in fleet.engine.list(limit=500) if run.key == key]


def ran_here(fleet: Fleet) -> int:
    path = fleet.traces / "ran-here"
    return len(path.read_text()) if path.exists() else 0


def wait_until_consumed(fleet: Fleet) -> None:
    with redis.Redis.from_url(redis_address(fleet.broker.url)) as client:
        queues = ("flowengine", "guarded")
        until(lambda: not any(client.llen(queue) for queue in queues), "all are consumed")
        # Taken from its queue, a message is here until its worker has acknowledged it.
        until(lambda: not waiting(client), "all are acknowledged")


def waiting(client: Any) -> list[str]:
    kept = [json.loads(text) for text in client.hvals("unacked")]
    names = [message[0]["headers"].get("task", "") for message in kept]
    return [name for name in names if name != "flowengine.watchdog"]
