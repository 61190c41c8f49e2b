"""Ticks of the watchdog: at most one waits in its queue.

The beat sends a tick every interval, also while no worker consumes the control queue. A message
that expires is dropped when it is consumed and not before, so Redis would keep each of them. A
tick that waits stands for all that follow: the worker that consumes it runs one recovery pass.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Task

from flowengine.dispatch.publisher import RETRY_POLICY, Publisher

log = logging.getLogger("flowengine")


class _TickPublisher(Publisher):
    def _log_lost(self, problem: Exception, level: int) -> None:
        log.log(
            level,
            "tick of the watchdog not sent, the workers run recovery without it: %s",
            problem,
            extra={"action": "wakeup_lost"},
        )


class Tick(Task):  # type: ignore[misc]
    """A Celery task that is sent only if its queue is empty, and never raises for the broker.

    The beat calls `apply_async` of the task, whichever scheduler it has. Other messages of the
    control queue count too: workers that leave them waiting find no time for a tick either, and
    run recovery in their heartbeat threads.

    Without the `Publisher`, an outage of the broker would be one traceback of Celery for each tick,
    and each would delay the user's own entries by Celery's retries.
    """

    abstract = True
    _publisher: Publisher | None = None

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        if self.app.conf.task_always_eager:
            return super().apply_async(args, kwargs, *more, **options)
        chosen = {key: options[key] for key in ("queue",) if options.get(key) is not None}
        queue = self.app.amqp.router.route(chosen, self.name).get("queue")
        limits = {"retry": True, "retry_policy": RETRY_POLICY}
        sent: list[Any] = []
        send = super().apply_async

        def send_if_none_waits(producer: Any) -> None:
            if queue is None or not _is_waiting(queue, producer):
                sent.append(send(args, kwargs, *more, **options | limits | {"producer": producer}))

        if self._publisher is None:
            self._publisher = _TickPublisher(self.app)
        self._publisher.publish(send_if_none_waits)
        return sent[0] if sent else None


def _is_waiting(queue: Any, producer: Any) -> bool:
    """Declare a queue, and return whether messages wait in it."""
    lengths = [0]
    bound = queue(producer.channel)
    bound.on_declared = lambda _name, messages, _consumers: lengths.append(messages)
    bound.queue_declare()
    return lengths[-1] > 0
