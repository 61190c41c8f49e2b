"""Pollers are woken for due tasks: of their process by a call, of others by PostgreSQL."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from flowengine.dispatch import NullNotifier
from flowengine.engine import Engine, pollers
from flowengine.engine.pollers import KNOWN_SECONDS, Pollers
from flowengine.engine.recovery import notify_due_tasks, wake_pollers
from flowengine.engine.watchdog import Watchdog
from flowengine.store.servers import POLLER, ServerDefinition, ServerState
from tests.integration.engines import one, opened, side_by_side, watched
from tests.servers import PostgresServer

WAIT = 20.0  #: seconds after which a notification is lost


class Messages(NullNotifier):
    """A broker that notes the wake-ups of lists."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def notify(self, due: object) -> None:
        self.sent += due  # type: ignore[arg-type]


def registered(engine: Engine, name: str, *, manager: str = POLLER, task_list: str = "") -> None:
    topics = [task_list or "default"]
    server = ServerDefinition(name, "default", "test", name, topics=topics, handlers=["Work"])
    server.state, server.manager, server.boot_id = ServerState.RUNNING, manager, name
    with engine.database.write() as session:
        server.ping_time = session.now()
        session.servers.register(server)


@pytest.fixture
def postgres_url(postgres: PostgresServer, with_schema: str) -> Iterator[str]:
    url = postgres.new_database(with_schema)
    yield url
    postgres.drop_database(url)


def test_a_poller_of_the_same_process_is_called(database_url: str) -> None:
    woken: list[int] = []
    with opened(database_url) as engine:
        with engine.pollers.subscribed("me", "default", woken.append):
            engine.start(side_by_side("a", "b"), "t.Flow", {})
            count = max(woken)
        engine.start(one(), "t.Flow", {})
    assert count == 2
    assert max(woken) == 2  # not after its end


def test_a_poller_of_another_process_is_notified(postgres_url: str) -> None:
    woken: queue.Queue[int] = queue.Queue()
    with opened(postgres_url) as here, opened(postgres_url) as there:
        registered(there, "poller")
        with there.pollers.subscribed("poller", "default", woken.put) as listener:
            assert listener is not None
            assert woken.get(timeout=WAIT) == 0  # it is connected: it may have missed some
            here.start(side_by_side("a", "b", "c"), "t.Flow", {})
            assert woken.get(timeout=WAIT) == 3


def test_a_commit_notifies_a_poller_that_is_known_itself(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pollers, "_COMMIT_PAUSE", 0.0)
    woken: queue.Queue[int] = queue.Queue()
    said: list[str] = []
    with opened(postgres_url) as here, opened(postgres_url) as there:
        registered(there, "poller")
        with there.pollers.subscribed("poller", "default", woken.put):
            assert woken.get(timeout=WAIT) == 0  # it listens
            here.start(one(), "t.Flow", {})  # reads the rows of pollers, after its commit
            assert woken.get(timeout=WAIT) == 1
            with watched(here, lambda text, _: said.append(text)):
                here.start(side_by_side("a", "b"), "t.Flow", {}, key="used")
                here.start(side_by_side("a", "b"), "t.Flow", {}, key="used")  # writes nothing
                here.start(side_by_side("a", "b", "c"), "t.Flow", {})
            assert [woken.get(timeout=WAIT) for _ in range(2)] == [2, 3]
    assert len([text for text in said if "pg_notify('flowengine_task" in text]) == 3
    assert not [text for text in said if text.startswith("SELECT pg_notify")]


def test_commits_in_quick_succession_lose_no_wake_up(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pollers, "_COMMIT_PAUSE", 3_600.0)
    woken: queue.Queue[int] = queue.Queue()
    said: list[str] = []
    with opened(postgres_url) as here, opened(postgres_url) as there:
        registered(there, "poller")
        with there.pollers.subscribed("poller", "default", woken.put):
            assert woken.get(timeout=WAIT) == 0
            here.start(one(), "t.Flow", {})
            with watched(here, lambda text, _: said.append(text)):
                for _ in range(3):
                    here.start(one(), "t.Flow", {})
            assert [woken.get(timeout=WAIT) for _ in range(4)] == [1, 1, 1, 1]
    assert len([text for text in said if "pg_notify('flowengine_task" in text]) == 1
    assert len([text for text in said if text.startswith("SELECT pg_notify")]) == 2


def test_nobody_is_notified_while_there_is_no_poller(postgres_url: str) -> None:
    said: list[str] = []
    with opened(postgres_url) as engine:
        registered(engine, "elsewhere", task_list="other")
        registered(engine, "worker", manager="")
        with watched(engine, lambda text, _: said.append(text)):
            for _ in range(5):
                engine.start(one(), "t.Flow", {})
    assert not [text for text in said if "pg_notify('flowengine_task" in text]
    assert not [text for text in said if "pg_notify(%" in text]
    assert len([text for text in said if "manager = 'poller'" in text]) == 1  # in some seconds


def test_a_poller_that_registers_later_is_known_after_some_seconds(postgres_url: str) -> None:
    now = [0.0]
    sent: list[str] = []
    with opened(postgres_url) as engine:
        known = Pollers(engine.database, lambda: now[0])
        with watched(engine, lambda text, _: sent.append(text)):
            known.wake({"default": 1})
            registered(engine, "late")
            known.wake({"default": 1})
            assert not [text for text in sent if "pg_notify" in text]
            now[0] += KNOWN_SECONDS
            known.wake({"default": 1})
        assert [text for text in sent if "pg_notify" in text]


def test_recovery_sends_no_message_for_a_list_that_pollers_alone_consume(
    database_url: str,
) -> None:
    messages, woken = Messages(), list[int]()
    with opened(database_url, notifier=messages) as engine:
        registered(engine, "poller")
        engine.start(one(), "t.Flow", {})
        messages.sent.clear()
        with engine.database.read() as session:
            alive = session.servers.alive()
            later = session.now() + 60_000
        with engine.pollers.subscribed("poller", "default", woken.append):
            engine.database._clock = lambda: later  # type: ignore[attr-defined]
            notify_due_tasks(engine, alive)
        assert messages.sent == []
        assert woken[-1] > 0

        registered(engine, "worker", manager="")
        with engine.database.read() as session:
            both = session.servers.alive()
        engine.database._clock = lambda: later + 60_000  # type: ignore[attr-defined]
        notify_due_tasks(engine, both)
        assert messages.sent == ["default"]


def test_a_pass_for_pollers_leaves_the_wake_ups_of_workers_to_workers(database_url: str) -> None:
    messages, woken = Messages(), list[int]()
    with opened(database_url, notifier=messages) as engine:
        registered(engine, "poller")
        engine.start(one(), "t.Flow", {})
        messages.sent.clear()
        with engine.pollers.subscribed("poller", "default", woken.append):
            assert Watchdog(engine, wake_pollers).tick()
        assert (messages.sent, woken[-1] > 0) == ([], True)
