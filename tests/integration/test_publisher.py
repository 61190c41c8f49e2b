"""A broker that hangs costs a caller the time limit, once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from celery import Celery

from flowengine.dispatch import publisher
from flowengine.dispatch.publisher import Publisher
from tests.integration.threads import TIMEOUT, wait_until

T = TypeVar("T")


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for of_driver in publisher._SOCKET_LIMITS.values():
        for option in of_driver:
            monkeypatch.setitem(of_driver, option, 0.1)
    monkeypatch.setattr(publisher, "TIME_LIMIT", 0.1)
    monkeypatch.setattr(publisher, "_PAUSE_HUNG", 3_600.0)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections, as its kernel does, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def connections(server: socket.socket) -> int:
    """Return how many connections were made to a silent server."""
    found = 0
    while True:
        try:
            server.accept()[0].close()
        except BlockingIOError:
            return found
        found += 1


def in_time(call: Callable[[], T]) -> T:
    """Return the result of a call that waited for ever without the time limit."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert found, "the call still waits for the broker"
    return found[0]


def publisher_of(url: str) -> Publisher:
    app = Celery("publishing", broker=url, set_as_current=False)
    app.conf.broker_connection_timeout = 10 * TIMEOUT  # the limit holds whatever the app allows
    return Publisher(app)


def test_a_caller_waits_for_the_broker_for_a_second_at_most() -> None:
    assert 0 < publisher.TIME_LIMIT <= 1
    limits = [s for of_driver in publisher._SOCKET_LIMITS.values() for s in of_driver.values()]
    assert limits == [publisher.TIME_LIMIT] * 4


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_never_answers_is_asked_once_and_given_up(
    scheme: str, silent: socket.socket
) -> None:
    sender = publisher_of(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}//")
    sent: list[Any] = []
    assert in_time(lambda: sender.publish(sent.append)) is False
    assert connections(silent) == 1, "no second attempt after the time limit"
    assert [sender.publish(sent.append) for _ in range(3)] == [False] * 3
    assert connections(silent) == 0, "the next attempt comes after a pause"
    assert sent == []


@pytest.mark.usefixtures("short_limit")
def test_a_caller_does_not_wait_for_a_producer_that_others_hold() -> None:
    sender = publisher_of("memory://")
    pool = sender._producers()
    held = [pool.acquire() for _ in range(pool.limit)]
    assert in_time(lambda: sender.publish(lambda producer: None)) is False
    for producer in held:
        producer.release()


@pytest.mark.usefixtures("short_limit")
def test_a_caller_leaves_a_message_that_hangs_to_its_thread() -> None:
    sender, goes_on, ended = publisher_of("memory://"), threading.Event(), threading.Event()

    def hang(_producer: Any) -> None:
        goes_on.wait(2 * TIMEOUT)
        ended.set()

    assert in_time(lambda: sender.publish_in_thread(hang)) is True
    assert not ended.is_set(), "the caller did not wait for its end"
    assert sender.publish_in_thread(hang) is False
    goes_on.set()
    assert ended.wait(TIMEOUT)
    wait_until(lambda: sender.publish_in_thread(lambda _: None), "the thread is free again")


@pytest.mark.usefixtures("short_limit")
def test_callers_of_one_thread_wait_for_each_other_no_longer_than_the_limit() -> None:
    sender = publisher_of("memory://")
    with sender._thread_is_free:
        assert in_time(lambda: sender.publish_in_thread(lambda _: None)) is False
