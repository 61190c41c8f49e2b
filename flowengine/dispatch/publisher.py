"""Publishing to the broker within a time limit.

The caller has committed rows and does not depend on the message, so a broker that hangs or is
unreachable costs it at most `TIME_LIMIT` seconds, once; then a circuit breaker skips messages until
the broker answers again. Recovery sends a wake-up for whatever was skipped.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

log = logging.getLogger("flowengine")

#: Seconds that a caller waits for the broker at most.
TIME_LIMIT = 1.0
#: Seconds until the next attempt, after a broker refused and after it did not answer.
_PAUSE_REFUSED = 1.0
_PAUSE_HUNG = 5.0

#: By kombu's driver: the options that limit each read and write of a connection. They must not
#: be set for a worker's own connection, which waits for messages as long as there are none.
_SOCKET_LIMITS: dict[str, dict[str, float]] = {
    "redis": {"socket_timeout": TIME_LIMIT, "socket_connect_timeout": TIME_LIMIT},
    "amqp": {"read_timeout": TIME_LIMIT, "write_timeout": TIME_LIMIT},
}


_Jobs = queue.SimpleQueue[tuple[Callable[[Any], None], queue.SimpleQueue[bool]]]

_attempt = threading.local()  # `began`: when this thread's attempt to publish did


def _give_up(problem: Exception, _interval: float) -> None:
    if time.monotonic() - _attempt.began >= TIME_LIMIT / 2:
        raise problem


#: Reconnect once and at once, but not after the time limit. Celery would wait for seconds.
RETRY_POLICY = {
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
    "errback": _give_up,
}


class Publisher:
    """Publishes messages of one app; never raises."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._template: Any = None  # a connection that is never opened; its address names the pool
        self._is_open, self._probe_at = False, 0.0
        self.forked()

    def forked(self) -> None:
        """Begin anew in a forked child: it may have copied a held lock, and has no threads."""
        self._lock, self._thread_is_free = threading.Lock(), threading.Lock()
        self._jobs: _Jobs | None = None
        self._thread_hangs = False

    def publish(self, send: Callable[[Any], None]) -> bool:
        """Call `send` with a producer; return whether the message was sent."""
        if not self._is_allowed():
            return False
        _attempt.began = began = time.monotonic()
        try:
            with self._producers().acquire(block=True, timeout=TIME_LIMIT) as producer:
                producer.connection.ensure_connection(**RETRY_POLICY)
                send(producer)
        except Exception as problem:
            was_open = self._is_open
            if not isinstance(problem, LookupError):  # a queue that the app does not know
                self._open_circuit(time.monotonic() - began)
            self._log_lost(problem, logging.DEBUG if was_open else logging.WARNING)
            return False
        if self._is_open:
            self._is_open = False
            log.warning("the broker accepts wake-ups again", extra={"action": "broker_back"})
        return True

    def _log_lost(self, problem: Exception, level: int) -> None:
        """Log the first message that an outage lost; further ones at DEBUG."""
        log.log(
            level,
            "wake-up not sent, recovery will repeat it: %s",
            problem,
            extra={"action": "wakeup_lost"},
        )

    def publish_in_thread(self, send: Callable[[Any], None]) -> bool:
        """Do the same for a `send` that also uses connections without a time limit.

        One thread does all of them. Returns False at once while it hangs in an earlier one.
        """
        if self._thread_hangs or not self._thread_is_free.acquire(timeout=TIME_LIMIT):
            return False
        answer: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._jobs_of_thread().put((send, answer))
        try:
            return answer.get(timeout=TIME_LIMIT)
        except queue.Empty:
            self._thread_hangs = True
            return True  # it will be sent, or found by recovery

    def _jobs_of_thread(self) -> _Jobs:
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            name = "flowengine-publisher"
            threading.Thread(
                target=self._do_jobs, args=[self._jobs], name=name, daemon=True
            ).start()
        return self._jobs

    def _do_jobs(self, jobs: _Jobs) -> None:
        while True:
            send, answer = jobs.get()
            answer.put(self.publish(send))
            self._thread_hangs = False
            self._thread_is_free.release()

    def queue_length(self, name: str) -> int:
        """Return how many messages wait in a queue; 0 if the broker cannot be asked."""
        lengths = [0]

        def ask(producer: Any) -> None:
            with suppress(*producer.connection.channel_errors):  # there is no such queue
                declared = producer.channel.queue_declare(name, passive=True)
                lengths.append(declared.message_count)

        self.publish(ask)
        return lengths[-1]

    # --- the pool ---

    def _producers(self) -> Any:
        import kombu.pools  # not for processes that only read, as most commands

        if self._template is None:
            app = self._app
            driver = app.connection_for_write().transport.driver_type
            limits = {**_SOCKET_LIMITS.get(driver, {}), **app.conf.broker_transport_options}
            # Kombu adds the policy to these options, which are the pool's name.
            options = {**limits, **RETRY_POLICY}
            app.pool  # noqa: B018 - sets the limit of all pools, and has them emptied after a fork
            # RabbitMQ also greets within this time; Celery would wait for it for four seconds.
            connect_timeout = min(app.conf.broker_connection_timeout or TIME_LIMIT, TIME_LIMIT)
            self._template = app.connection_for_write(
                transport_options=options, connect_timeout=connect_timeout
            )
        return kombu.pools.producers[self._template]

    # --- the circuit ---

    def _is_allowed(self) -> bool:
        if not self._is_open:
            return True
        with self._lock:
            now = time.monotonic()
            if now < self._probe_at:
                return False
            self._probe_at = now + _PAUSE_HUNG  # one probe at a time
            return True

    def _open_circuit(self, seconds: float) -> None:
        pause = _PAUSE_HUNG if seconds >= TIME_LIMIT / 2 else _PAUSE_REFUSED
        self._is_open, self._probe_at = True, time.monotonic() + pause
