"""The in-process broker wakes its consumer: without that, these would wait for an hour."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue

from flowengine.dispatch.process_transport import SCHEME

HOUR = 3_600.0


@pytest.fixture
def connection() -> Iterator[Connection]:
    options = {"polling_interval": HOUR}
    with Connection(f"{SCHEME}://localhost", transport_options=options) as connection:
        yield connection


@pytest.fixture
def queue() -> Queue:
    return Queue(f"wake-{uuid.uuid4().hex}")  # queues are shared by the whole process


def publish(connection: Connection, queue: Queue, *bodies: int) -> None:
    with connection.clone() as own, own.Producer() as producer:
        for body in bodies:
            producer.publish(body, routing_key=queue.name, declare=[queue])


def drained(connection: Connection) -> threading.Thread:
    """Receive one message in another thread, which begins to wait first."""
    thread = threading.Thread(target=connection.drain_events, kwargs={"timeout": 60})
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    return thread


def test_a_message_wakes_the_consumer(connection: Connection, queue: Queue) -> None:
    received: list[Any] = []
    with Consumer(connection, [queue], callbacks=[lambda body, _: received.append(body)]):
        thread = drained(connection)
        publish(connection, queue, 7)
        thread.join(30)
        assert received == [7]


def test_an_acknowledgement_makes_room_for_the_next_message(
    connection: Connection, queue: Queue
) -> None:
    received: list[Any] = []

    def keep(_: Any, message: Any) -> None:
        received.append(message)

    with Consumer(connection, [queue], callbacks=[keep]) as consumer:
        consumer.qos(prefetch_count=1)
        publish(connection, queue, 1, 2)
        connection.drain_events(timeout=30)
        thread = drained(connection)
        received[0].ack()
        thread.join(30)
        assert [message.payload for message in received] == [1, 2]


def test_without_a_message_the_time_is_over(connection: Connection, queue: Queue) -> None:
    with Consumer(connection, [queue]), pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.01)
