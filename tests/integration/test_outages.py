"""Callers during an outage: PostgreSQL refuses connections, and accepts them again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import event

from flowengine.engine import Engine, after_commit
from flowengine.errors import PartlyStarted
from flowengine.evaluator.triggers import Succeeded
from flowengine.store import Database
from tests.integration.engines import claim, one, opened, watched
from tests.integration.threads import TIMEOUT, wait_until
from tests.servers import PostgresServer


@contextmanager
def administration(
    database: Database, name: str | None = "postgres"
) -> Iterator[Callable[[str], Any]]:
    """Execute statements, by default from another database of the same server."""
    url = database.url.set(drivername="postgresql", database=name)
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as other:
        yield other.execute


def refuse_connections(database: Database) -> None:
    with administration(database) as execute:
        execute(f'ALTER DATABASE "{database.url.database}" ALLOW_CONNECTIONS false')
        execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{database.url.database}'"
        )


def accept_connections(database: Database) -> None:
    with administration(database) as execute:
        execute(f'ALTER DATABASE "{database.url.database}" ALLOW_CONNECTIONS true')


@pytest.fixture
def engine(postgres: PostgresServer) -> Iterator[Engine]:
    url = postgres.new_database()
    with opened(url) as engine:
        yield engine
        accept_connections(engine.database)
    postgres.drop_database(url)


def outages_logged(caplog: pytest.LogCaptureFixture) -> bool:
    return any(getattr(record, "action", "") == "wait_outage" for record in caplog.records)


def test_a_result_waits_through_an_outage(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    run = engine.start(one(), "Flow", {})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.result, TIMEOUT)
        wait_until(lambda: engine.completions._waiters.get(run.id), "the caller waits")
        refuse_connections(engine.database)
        wait_until(lambda: outages_logged(caplog), "the caller has met the outage")
        accept_connections(engine.database)
        # The pool may still hold connections that were closed; here only the caller meets them.
        engine.database.engine.dispose()
        assert engine.report(claim(engine), Succeeded({"y": 1}))
        assert waiting.result(TIMEOUT) == {"y": 1}


def test_a_result_that_cannot_be_read_in_time_names_the_outage(engine: Engine) -> None:
    run = engine.start(one(), "Flow", {})
    refuse_connections(engine.database)
    with pytest.raises(TimeoutError, match=r"could not be read for 0\.05 s: .*not currently acce"):
        run.result(timeout=0.05)


def test_a_run_that_ended_while_nothing_listened_is_noticed_at_the_next_connection(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FIRST_POLL", "_LAST_POLL", "_LISTENING_POLL"):
        monkeypatch.setattr(after_commit, name, 10 * TIMEOUT)
    run = engine.start(one(), "Flow", {})

    def is_listening() -> bool:
        listener = engine.completions._listener
        return listener is not None and listener.is_listening

    with (
        ThreadPoolExecutor(1) as pool,
        opened(str(engine.database.url.render_as_string(False))) as other,
    ):
        waiting = pool.submit(run.result, TIMEOUT)
        wait_until(is_listening, "the caller listens")
        with administration(engine.database) as execute:
            execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = '{engine.database.url.database}' AND query LIKE 'LISTEN%'"
            )
        wait_until(lambda: not is_listening(), "the listener has lost its connection")
        assert other.report(claim(other), Succeeded({"y": 2}))
        assert waiting.result(TIMEOUT) == {"y": 2}


class PassingTime:
    """A clock that waiting moves, for callers that listen; after a minute they really wait."""

    def __init__(self, engine: Engine) -> None:
        self._completions, self.now = engine.completions, 0.0

    def monotonic(self) -> float:
        return self.now

    def event(self) -> threading.Event:
        made = threading.Event()
        really_wait = made.wait

        def wait(seconds: float) -> bool:
            wait_until(self._is_listening, "the caller listens")
            if self.now >= 60:
                return really_wait(TIMEOUT)
            self.now += seconds
            return False

        made.wait = wait  # type: ignore[method-assign,assignment]
        return made

    def _is_listening(self) -> bool:
        listener = self._completions._listener
        return listener is not None and listener.is_listening


@contextmanager
def statements_of_others(engine: Engine) -> Iterator[list[str]]:
    """The statements that threads other than this one send."""
    sent: list[str] = []
    own = threading.get_ident()

    def note(statement: str, _given: Any = None) -> None:
        if threading.get_ident() != own:
            sent.append(statement)

    def listen(*details: Any) -> None:
        note(details[2])

    event.listen(engine.database.engine, "before_cursor_execute", listen)
    with watched(engine, note):
        yield sent
    event.remove(engine.database.engine, "before_cursor_execute", listen)


def test_a_caller_that_is_notified_hardly_polls(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = engine.start(one(), "Flow", {})
    time = PassingTime(engine)
    monkeypatch.setattr(after_commit, "time", time)
    monkeypatch.setattr(after_commit, "threading", SimpleNamespace(Event=time.event))
    with ThreadPoolExecutor(1) as pool, statements_of_others(engine) as sent:
        waiting = pool.submit(run.result, 10 * TIMEOUT)
        wait_until(lambda: time.now >= 60, "a minute has passed for the caller")
        assert engine.report(claim(engine), Succeeded({"y": 3}))
        assert waiting.result(TIMEOUT) == {"y": 3}
    checks = [statement for statement in sent if "FROM flowengine_run" in statement]
    # Six in the minute; the others when it begins to wait, begins to listen, and is woken.
    assert 6 < len(checks) <= 12, f"{len(checks)} checks"


def test_start_many_names_the_runs_that_were_started_before_an_outage(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, commits = engine.starter.start, 0

    def start_then_refuse(requests: list[Any]) -> list[str]:
        nonlocal commits
        commits += 1
        if commits == 3:
            refuse_connections(engine.database)
        return start(requests)

    monkeypatch.setattr(engine.starter, "start", start_then_refuse)
    with pytest.raises(PartlyStarted, match="100 of 130 runs were started before") as error:
        engine.start_many(one(), "Flow", [{}] * 130)
    accept_connections(engine.database)
    assert len(error.value.started) == 100
    assert {run.id for run in error.value.started} == {run.id for run in engine.list(limit=200)}


def test_a_program_is_stored_again_after_a_backup_without_it_was_restored(engine: Engine) -> None:
    engine.start(one(), "Flow", {})
    with administration(engine.database, engine.database.url.database) as execute:
        for table in ("history", "task", "event", "step", "run", "program"):
            execute(f"DELETE FROM flowengine_{table}")
    refuse_connections(engine.database)  # a restore ends all connections
    accept_connections(engine.database)
    run = engine.start(one(), "Flow", {})
    with opened(engine.database.url.render_as_string(False)) as other:
        assert other.report(claim(other), Succeeded({"y": 4}))
    assert run.result(TIMEOUT) == {"y": 4}
