"""The patches of Celery and billiard, each tested on the code that it patches."""

from __future__ import annotations

import threading
import time

import amqp
import amqp.method_framing
import billiard
import redis.exceptions
from billiard.pool import Worker
from celery import Celery
from celery.concurrency.prefork import TaskPool
from kombu import Connection

from flowengine.assembly.celery_patches import patch_celery


def test_a_pool_child_does_not_wait_half_a_minute_for_results_that_are_never_counted() -> None:
    patch_celery()
    child = Worker.__new__(Worker)
    child.on_ready_counter = billiard.Value("i", 0)
    began = time.monotonic()
    assert not child._ensure_messages_consumed(completed=1)
    assert time.monotonic() - began < 10


def test_a_pool_that_is_stopped_has_no_processes() -> None:
    """Celery asks for their number when a connection is lost during a shutdown."""
    patch_celery()
    pool = TaskPool(2, app=Celery("stopped", set_as_current=False))
    assert pool.num_processes == 0


def test_a_redis_that_refuses_writes_counts_as_a_lost_connection() -> None:
    patch_celery()
    with Connection("redis://localhost") as connection:
        errors = connection.connection_errors
    assert issubclass(redis.exceptions.OutOfMemoryError, errors)
    assert issubclass(redis.exceptions.ReadOnlyError, errors)
    assert not issubclass(redis.exceptions.NoPermissionError, errors)


class _InterruptedTransport:
    """A transport in whose write a signal arrives; its handler writes, too."""

    def __init__(self, connection: amqp.Connection) -> None:
        self.connection, self.refusals = connection, list[Exception]()

    def write(self, _: bytes) -> None:
        try:
            self.connection.frame_writer(8, 0, None, None, None)
        except OSError as refused:
            self.refusals.append(refused)


def test_a_signal_handler_that_interrupts_a_write_to_rabbitmq_does_not_wait_for_itself() -> None:
    """Celery stops its consumer in the handler of SIGQUIT."""
    patch_celery()
    connection = amqp.Connection()
    connection.frame_max = 1000
    transport = _InterruptedTransport(connection)
    connection.frame_writer = amqp.method_framing.frame_writer(connection, transport)
    heartbeat = (8, 0, None, None, None)
    thread = threading.Thread(target=connection.frame_writer, args=heartbeat, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(transport.refusals[0], connection.connection_errors)
    connection.frame_writer(*heartbeat)
    assert len(transport.refusals) == 2, "the next write is no interrupted one"
