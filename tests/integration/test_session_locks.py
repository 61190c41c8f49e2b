"""The session lock of a server, on real servers and with real deaths."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from sqlalchemy import make_url

from flowengine.assembly.embedded import Embedded
from flowengine.engine import Engine
from flowengine.engine.watchdog import Watchdog
from flowengine.settings import Settings
from flowengine.store import Database
from flowengine.store.lock_tokens import LockState, LockToken
from flowengine.store.postgres.database import PostgresDatabase
from flowengine.store.postgres.session_lock import SessionLock
from flowengine.store.servers import ServerDefinition, ServerState
from flowengine.worker.heartbeat import Heartbeat
from tests.celery_nodes import RestartablePostgres, until
from tests.fork_server import context
from tests.integration.engines import MovedClock, cut_off, opened
from tests.servers import PostgresServer

SETTINGS = Settings(watchdog_interval=0.5, lock_heartbeat_interval=1, server_timeout=3600)


@pytest.fixture
def database(postgres: PostgresServer, with_schema: str) -> Iterator[PostgresDatabase]:
    url = postgres.new_database(with_schema)
    yield from _opened(url)
    postgres.drop_database(url)


def _opened(url: str) -> Iterator[PostgresDatabase]:
    found = Database(url)
    assert isinstance(found, PostgresDatabase)
    yield found
    found.close()


@pytest.fixture
def lock(database: PostgresDatabase) -> Iterator[SessionLock]:
    made = database.server_lock()
    yield made
    made.release()


def _held(lock: SessionLock) -> str:
    token = lock.hold()
    assert token is not None
    return token


def _state(database: Database, token: str) -> LockState:
    with database.read() as session:
        return session.servers.probe_lock(token)


# --- the lock ---


def test_a_lock_is_held_until_it_is_released(database: PostgresDatabase, lock: SessionLock) -> None:
    token = _held(lock)
    assert _state(database, token) is LockState.HELD
    assert lock.hold(verify=True) == token
    lock.release()
    until(lambda: _state(database, token) is LockState.FREE, "a free lock")
    assert _held(lock) != token, "each acquisition has a key of its own"


def test_the_lock_of_a_server_is_none_that_the_store_uses_otherwise(
    database: PostgresDatabase, lock: SessionLock
) -> None:
    _held(lock)
    with database.read() as session:
        ((high, kind),) = session.rows(
            "SELECT classid::bigint, objsubid FROM pg_locks l JOIN pg_database d "
            "ON d.oid = l.database WHERE locktype = 'advisory' AND datname = current_database()"
        )
    assert kind == 1, "one number: shares of tenants and upgrades of schemas have two"
    assert high >= 1 << 30, "the lock of an upgrade without a schema is a small number"


def test_a_cut_session_frees_the_lock_and_its_server_acquires_another(
    database: PostgresDatabase, lock: SessionLock
) -> None:
    token = _held(lock)
    _terminate_locks(database)
    until(lambda: _state(database, token) is LockState.FREE, "a free lock")
    new = until(lambda: found if (found := lock.hold()) != token else None, "another lock")
    assert _state(database, new) is LockState.HELD


def _terminate_locks(database: Database) -> None:
    with database.read() as session:
        session.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'flowengine-lock'"
        )


def test_a_session_that_was_opened_during_a_fork_is_not_kept(
    lock: SessionLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child may have a copy of its socket, and not know of it."""
    connect, opened_sessions = lock._connect, []

    def connect_during_a_fork() -> psycopg.Connection[Any]:
        opened_sessions.append(connect())
        lock._count_fork()
        return opened_sessions[-1]

    monkeypatch.setattr(lock, "_connect", connect_during_a_fork)
    assert lock.hold() is None
    assert [session.closed for session in opened_sessions] == [True]
    monkeypatch.undo()
    assert lock.hold() is not None


def test_a_database_that_refuses_connections_gives_no_lock(postgres: PostgresServer) -> None:
    database = PostgresDatabase(postgres.new_database())
    lock = database.server_lock()
    postgres.drop_database(database.url.render_as_string())
    assert lock.hold() is None
    assert not lock.beat("server")


# --- deaths ---


def _hold_until_killed(url: str, answer: Any) -> None:
    """Hold the lock, with a forked child and a program that outlive this process."""
    database = Database(url)
    lock = database.server_lock()
    assert lock is not None
    token = lock.hold()
    child = os.fork()
    if not child:
        signal.pause()
    program = subprocess.Popen(["sleep", "600"], close_fds=False)
    assert lock.hold(verify=True) == token, "the child did not end the session of its parent"
    answer.send((token, child, program.pid))
    signal.pause()


def test_a_killed_process_frees_its_lock_though_its_children_live(
    database: PostgresDatabase,
) -> None:
    here, there = context.Pipe()
    url = database.url.render_as_string(hide_password=False)
    process = context.Process(target=_hold_until_killed, args=(url, there))
    process.start()
    token, *children = here.recv()
    try:
        assert _state(database, token) is LockState.HELD
        process.kill()
        until(lambda: _state(database, token) is LockState.FREE, "a free lock")
        assert all(psutil.pid_exists(pid) for pid in children)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        process.join()


@pytest.fixture(scope="module")
def restartable() -> Iterator[RestartablePostgres]:
    server = RestartablePostgres()
    yield server
    server.stop()


def _restart(server: RestartablePostgres) -> None:
    server.go_away()
    server.come_back()


def _crash(server: RestartablePostgres) -> None:
    """Kill one backend: PostgreSQL ends all others and starts again, as the same process."""
    postmaster = psutil.Process(server._pid)
    before = {process.pid for process in postmaster.children()}
    (pid,) = server._connection.execute("SELECT pg_backend_pid()").fetchone() or ()
    os.kill(pid, signal.SIGKILL)
    server._connection.close()
    until(lambda: not before & {process.pid for process in postmaster.children()}, "its restart")
    until(server._answers, "an answer")
    server._connection = server._connect()


@pytest.mark.parametrize("restart", [_restart, _crash])
def test_a_restart_of_the_database_makes_its_locks_unknown(
    restartable: RestartablePostgres, restart: Callable[[RestartablePostgres], None]
) -> None:
    database = PostgresDatabase(restartable.new_database())
    lock = database.server_lock()
    try:
        token = _held(lock)
        restart(restartable)
        assert _state(database, token) is LockState.UNKNOWN
        new = until(lambda: found if (found := lock.hold()) != token else None, "another lock")
        assert _state(database, new) is LockState.HELD
    finally:
        lock.release()
        database.close()


# --- a pooler ---


class Pooler:
    """Passes on everything but the id of the server process: a pooler invents one."""

    def __init__(self, directory: Path, upstream: str) -> None:
        self._upstream = upstream
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / ".s.PGSQL.5432"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._upstream)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(65536):
                key_data = data.find(b"K\0\0\0\x0c")
                if key_data >= 0:
                    data = data[: key_data + 5] + b"\0\0\1\1" + data[key_data + 9 :]
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


def test_behind_a_pooler_there_is_no_lock(database: PostgresDatabase, tmp_path: Path) -> None:
    url = make_url(database.url)
    directory = Path("/tmp") / f"pooler-{os.getpid()}"  # the path of a socket must be short
    directory.mkdir()
    pooler = Pooler(directory, f"{url.query['host']}/.s.PGSQL.{url.query['port']}")
    pooled = PostgresDatabase(
        url.update_query_dict({"host": str(directory), "port": "5432"}).render_as_string()
    )
    lock = pooled.server_lock()
    try:
        assert lock.hold() is None
        server = _server("pooled")
        with opened(pooled.url.render_as_string(), settings=SETTINGS) as engine:
            heartbeat = _heartbeat(engine, server)
            heartbeat.send(engine)
            assert _row(engine, server).lock_token is None
            heartbeat.stop()
    finally:
        pooled.close()
        pooler.close()
        (directory / ".s.PGSQL.5432").unlink()
        directory.rmdir()


# --- heartbeats and recovery ---


def _server(name: str) -> ServerDefinition:
    return ServerDefinition(
        name, "default", "worker", name, boot_id=name, state=ServerState.RUNNING
    )


def _row(engine: Engine, server: ServerDefinition) -> ServerDefinition:
    with engine.database.read() as session:
        (row,) = session.servers.by_boot_ids([server.boot_id])
    return row


def _heartbeat(engine: Engine, server: ServerDefinition) -> Heartbeat:
    return Heartbeat(lambda: engine, SETTINGS, server, list, ())


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def engine(
    postgres: PostgresServer, with_schema: str, clock: MovedClock, tmp_path: Path
) -> Iterator[Engine]:
    url = postgres.new_database(with_schema)
    with opened(url, clock=clock, settings=SETTINGS) as made:
        yield made
    postgres.drop_database(url)


def _watch(engine: Engine, clock: MovedClock, seconds: float) -> None:
    for _ in range(round(seconds * 2)):
        clock.now += 500
        assert Watchdog(engine).tick()


def test_a_server_whose_lock_is_free_is_dead_after_a_missed_heartbeat(
    engine: Engine, clock: MovedClock
) -> None:
    _watch(engine, clock, 5)
    server = _server("killed")
    heartbeat = _heartbeat(engine, server)
    heartbeat.send(engine)
    _watch(engine, clock, 20)
    assert _row(engine, server).state == ServerState.RUNNING, "its lock is held: it is suspended"
    assert heartbeat._lock is not None
    heartbeat._lock.release()
    until(lambda: _is_free(engine, server), "a free lock")
    _watch(engine, clock, 0.5)
    assert _row(engine, server).state == ServerState.ERROR


def _is_free(engine: Engine, server: ServerDefinition) -> bool:
    token = _row(engine, server).lock_token
    assert token is not None
    return _state(engine.database, token) is LockState.FREE


def test_a_server_that_sends_heartbeats_is_not_dead_whatever_happens_to_its_lock(
    engine: Engine, clock: MovedClock
) -> None:
    _watch(engine, clock, 5)
    server = _server("cut")
    heartbeat = _heartbeat(engine, server)
    heartbeat.send(engine)
    for _ in range(3):
        before = _row(engine, server).lock_token
        assert before is not None
        _terminate_locks(engine.database)
        until(lambda: _is_free(engine, server), "a free lock")
        _watch(engine, clock, 2)
        assert _row(engine, server).state == ServerState.RUNNING, "its heartbeat is not missed yet"

        def reacquired() -> bool:
            heartbeat.send(engine)
            return _row(engine, server).lock_token not in (None, before)  # noqa: B023

        until(reacquired, "another lock")
        assert _row(engine, server).ping_time == clock.now, "the new token came with a heartbeat"
        _watch(engine, clock, 2)
        assert _row(engine, server).state == ServerState.RUNNING
        lock: Any = heartbeat._lock
        assert lock.beat(server.uuid)
    heartbeat.stop()


def test_a_lock_that_cannot_be_acquired_again_leaves_the_row(
    postgres: PostgresServer, with_schema: str
) -> None:
    url = make_url(postgres.new_database(with_schema))
    owner = Database(url.render_as_string())
    with owner.write() as session:
        session.connection.exec_driver_sql("CREATE ROLE limited LOGIN")
        grant = "GRANT ALL ON ALL TABLES IN SCHEMA public TO limited"
        session.connection.exec_driver_sql(grant)
    server = _server("limited")
    with opened(url.set(username="limited").render_as_string()) as engine:
        heartbeat = _heartbeat(engine, server)
        heartbeat.send(engine)
        assert _row(engine, server).lock_token is not None
        with owner.write() as session:
            # One is the pool's.
            session.connection.exec_driver_sql("ALTER ROLE limited CONNECTION LIMIT 1")
        _terminate_locks(owner)
        until(lambda: _is_free(engine, server), "a free lock")

        def left() -> bool:
            heartbeat.send(engine)
            return _row(engine, server).lock_token is None

        until(left, "a row without a token")
        heartbeat.stop()
    owner.close()


def test_a_short_heartbeat_moves_the_time_of_its_server_alone(
    engine: Engine, clock: MovedClock
) -> None:
    server, other = _server("one"), _server("other")
    heartbeat = _heartbeat(engine, server)
    heartbeat.send(engine)
    with engine.database.write() as session:
        session.servers.register(other)
    clock.now += 700
    lock: Any = heartbeat._lock
    assert lock.beat(server.uuid)
    assert _row(engine, server).ping_time == clock.now
    assert _row(engine, other).ping_time == 0
    with engine.database.write() as session:
        session.servers.mark_dead(_row(engine, server))
    assert not lock.beat(server.uuid), "a full heartbeat brings a dead server back"
    heartbeat.stop()
    assert not lock.beat(server.uuid)


def test_a_lost_session_does_not_end_the_heartbeat(engine: Engine) -> None:
    server = _server("cut off")
    heartbeat = _heartbeat(engine, server)
    heartbeat.send(engine)
    cut_off(engine)

    def sent() -> bool:
        with contextlib.suppress(Exception):  # the pool has connections that were cut, too
            heartbeat.send(engine)
        token = _row(engine, server).lock_token
        return token is not None and _state(engine.database, token) is LockState.HELD

    until(sent, "a heartbeat with another lock")
    heartbeat.stop()


def test_a_server_that_shuts_down_leaves_no_lock_and_no_token(engine: Engine) -> None:
    server = _server("stopped")
    heartbeat = _heartbeat(engine, server)
    heartbeat.send(engine)
    token = _row(engine, server).lock_token
    assert token is not None
    assert LockToken.parse(token) is not None
    heartbeat.stop()
    until(lambda: _state(engine.database, token) is LockState.FREE, "a free lock")
    assert _row(engine, server).lock_token is None
    assert _row(engine, server).state == ServerState.SHUTDOWN


def test_an_embedded_process_holds_a_lock_until_it_is_closed(
    database: PostgresDatabase, tmp_path: Path
) -> None:
    url = database.url.render_as_string(hide_password=False)
    settings = Settings(database_url=url, spool_directory=str(tmp_path), concurrency=1)
    embedded = Embedded(settings)
    try:
        with database.read() as session:
            (server,) = session.servers.alive()
        token = server.lock_token
        assert token is not None
        assert _state(database, token) is LockState.HELD
    finally:
        embedded.close()
    until(lambda: _state(database, token) is LockState.FREE, "a free lock")
