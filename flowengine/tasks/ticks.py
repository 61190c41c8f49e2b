"""Ticks of the watchdog: at most one waits in its queue.

The beat sends a tick every interval, also while no worker consumes the control queue. A message
that expires is dropped when it is consumed and not before, so Redis would keep each of them. A
tick that waits stands for all that follow: the worker that consumes it runs one recovery pass.
"""

from __future__ import annotations

from typing import Any

from celery import Task

from flowengine.dispatch.publisher import Publisher


class Tick(Task):  # type: ignore[misc]
    """A Celery task that is sent only if its queue is empty.

    The beat calls `apply_async` of the task, whichever scheduler it has. Other messages of the
    control queue count too: workers that leave them waiting find no time for a tick either, and
    run recovery in their heartbeat threads.
    """

    abstract = True
    _publisher: Publisher | None = None

    def apply_async(self, *args: Any, **options: Any) -> Any:
        if not self.app.conf.task_always_eager and self._is_waiting(options.get("queue")):
            return None
        return super().apply_async(*args, **options)

    def _is_waiting(self, queue: Any) -> bool:
        chosen = {} if queue is None else {"queue": queue}
        found = self.app.amqp.router.route(chosen, self.name).get("queue")
        if found is None:
            return False
        if self._publisher is None:
            self._publisher = Publisher(self.app)
        return self._publisher.declared_length(found) > 0
