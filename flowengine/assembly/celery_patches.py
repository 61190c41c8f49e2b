"""Patch Celery, kombu and billiard where an outage would end a worker, or delay its end.

Each patch only adds to an answer of theirs that would end the worker, so it has no effect where a
later version gives another answer.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from importlib.util import find_spec
from typing import Any

from flowengine.tasks.celery_tasks import WAKEUPS

#: Errors of a Redis that answers but accepts no writes: at its memory limit, or in a failover.
_REFUSED_WRITES = ("OutOfMemoryError", "ReadOnlyError", "MasterDownError")
#: Seconds in which pool children that replace dead ones must not die.
_STARTUP_SECONDS = 1.0
#: Seconds for which a pool child that ends waits until its results were read.
_EXIT_SECONDS = 2.0


def patch_celery() -> None:
    """Apply all patches. Idempotent."""
    if find_spec("redis") is not None:
        from kombu.transport import redis as transport
        from redis import exceptions

        named = [getattr(exceptions, name, None) for name in _REFUSED_WRITES]
        refused = tuple(error for error in named if error is not None)
        _patch_redis_address(transport.Channel, exceptions.ConnectionError)
        _patch_redis_errors(transport.Transport, refused)
        _patch_redis_ack(transport.QoS, refused)
    with contextlib.suppress(ImportError):  # or no RabbitMQ
        from amqp import connection

        _patch_interrupted_write(connection.Connection)
    _patch_pool()
    _patch_child_exit()
    _patch_worker_events()
    _patch_sent_events()


def _patch_redis_address(channel_class: Any, lost: type[Exception]) -> None:
    """Report a closed connection to Redis as a lost connection.

    Celery 5.7 closes the connection before it gives back the messages it has reserved. Kombu's
    Redis transport then asks a transport without a connection for its address, and the
    AttributeError ends the worker. After a ConnectionError Celery reconnects instead.
    """
    address = getattr(channel_class, "_connparams", None)
    if address is None or hasattr(address, "__wrapped__"):
        return

    @functools.wraps(address)
    def address_if_connected(channel: Any, *args: Any, **kwargs: Any) -> Any:
        if channel.connection.client is None:
            raise lost("the connection to Redis was closed")
        return address(channel, *args, **kwargs)

    channel_class._connparams = address_if_connected


def _patch_redis_errors(transport: Any, refused: tuple[type[Exception], ...]) -> None:
    """Have a worker reconnect when Redis refuses writes.

    Kombu counts these among the errors of a channel, which end a worker unless
    `broker_channel_error_retry` is set; and that retries errors of configuration, too.
    """
    known = transport.connection_errors
    transport.connection_errors = (*known, *(error for error in refused if error not in known))


def _patch_redis_ack(window: Any, refused: tuple[type[Exception], ...]) -> None:
    """Keep the prefetch window open when Redis refuses to remove an acknowledged message.

    Celery logs such an error and goes on, as after a lost connection. But the connection is not
    lost: the messages stay in the window for ever, and a worker with a full one consumes nothing.
    They are removed together with the next message that Redis accepts.
    """
    ack = getattr(window, "ack", None)
    if ack is None or hasattr(ack, "__wrapped__") or not hasattr(window, "_remove_from_indices"):
        return

    @functools.wraps(ack)
    def ack_now_or_later(qos: Any, delivery_tag: str) -> None:
        unremoved: list[str] = qos.__dict__.setdefault("_flowengine_unremoved", [])
        try:
            ack(qos, delivery_tag)
            while unremoved:
                qos._remove_from_indices(unremoved[-1]).execute()
                unremoved.pop()
        except refused:
            if delivery_tag not in unremoved and delivery_tag in qos._delivered:
                unremoved.append(delivery_tag)
                super(window, qos).ack(delivery_tag)

    window.ack = ack_now_or_later


def _patch_interrupted_write(connection_class: Any) -> None:
    """Have a signal handler that interrupts a write to RabbitMQ not wait for the end of it.

    Celery stops its consumer in the handler of SIGQUIT. If the main thread was just writing, it
    waits there for a lock that it holds itself, and the worker never ends. A connection in the
    middle of a write cannot be used: Celery ignores the error there and goes on with its end.
    """
    writer = connection_class.frame_writer
    assign: Any = getattr(writer, "fset", None)
    if assign is None or hasattr(assign, "__wrapped__"):
        return

    @functools.wraps(assign)
    def set_guarded(connection: Any, write_frame: Any) -> None:
        writing: set[int] = set()  #: threads

        @functools.wraps(write_frame)
        def write(*frame: Any) -> Any:
            thread = threading.get_ident()
            if thread in writing:
                raise ConnectionError("a signal has interrupted a write to RabbitMQ")
            writing.add(thread)
            try:
                return write_frame(*frame)
            finally:
                writing.discard(thread)

        assign(connection, write)

    connection_class.frame_writer = writer.setter(set_guarded)


def _patch_pool() -> None:
    """Have a prefork pool replace children that died before the worker was connected.

    Celery ends the worker ("Could not start worker processes") if any child has died since the
    pool was started, however long ago; it may have waited for its broker since. And it asks a
    pool that is stopped for its size when the connection is lost during a shutdown.
    """
    from celery.concurrency import prefork

    pool = prefork.TaskPool
    if hasattr(pool.did_start_ok, "__wrapped__"):
        return
    did_start_ok, num_processes = pool.did_start_ok, pool.num_processes

    @functools.wraps(did_start_ok)
    def did_start_or_replaced(self: Any) -> bool:
        if did_start_ok(self):
            return True
        self._pool.maintain_pool()  # also forgets the dead
        ends = time.monotonic() + _STARTUP_SECONDS
        while time.monotonic() < ends:
            if not did_start_ok(self):
                return False  # new children die too: the fault is in their start
            time.sleep(0.05)
        return True

    def size(self: Any) -> int:
        return 0 if self._pool is None else int(num_processes.fget(self))

    pool.did_start_ok = did_start_or_replaced
    if isinstance(num_processes, property):
        pool.num_processes = property(size)


def _patch_child_exit() -> None:
    """Have a pool child end soon though its parent has not counted all of its results.

    Jobs that a reconnecting worker has cancelled are never counted, and at a warm shutdown each
    child waits 30 seconds for them. Results of flowengine are in SQL by then.
    """
    from billiard import pool

    limit = getattr(pool, "GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT", None)
    interval = getattr(pool, "GUARANTEE_MESSAGE_CONSUMPTION_RETRY_INTERVAL", None)
    if limit and interval:
        tries = min(limit, round(_EXIT_SECONDS / interval))
        pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = tries


def _patch_worker_events() -> None:
    """Have a worker that ends without its broker drop the event of its heartbeat.

    Celery retries that event for ever, and holds a lock which the end of the worker waits for.
    The next event says the same.
    """
    from celery.worker.heartbeat import Heart

    send = getattr(Heart, "_send", None)
    if send is None or hasattr(send, "__wrapped__"):
        return

    @functools.wraps(send)
    def send_once(heart: Any, event: str, *_args: Any, **_kwargs: Any) -> Any:
        return send(heart, event, retry=event == "worker-online")

    Heart._send = send_once


def _patch_sent_events() -> None:
    """Send no `task-sent` event of a wake-up, with `task_send_sent_event`.

    Flower keeps a limited number of tasks; two ticks a second would take the places of others.
    """
    from celery.app.amqp import AMQP

    create = AMQP.as_task_v2
    if hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def without_event(amqp: Any, task_id: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        message = create(amqp, task_id, name, *args, **kwargs)
        return message._replace(sent_event=None) if name in WAKEUPS else message

    AMQP.as_task_v2 = without_event
