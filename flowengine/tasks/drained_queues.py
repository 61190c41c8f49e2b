"""A drained worker consumes no queue: its wake-ups go to workers that claim tasks.

Without this it would answer the wake-ups that the broker gives it, claim nothing, and others would
learn of the tasks later. The database refuses its claims anyway, whatever is still delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowengine.engine import Engine
from flowengine.store.servers import ServerDefinition


class DrainedQueues:
    """Stops consuming the queues of a worker while it is drained, and consumes them again."""

    def __init__(
        self,
        server: ServerDefinition,
        consumed: Callable[[], Sequence[str]],
        consume: Callable[[str], None],
        cancel: Callable[[str], None],
    ) -> None:
        self._server, self._consumed = server, consumed
        self._consume, self._cancel = consume, cancel
        self._left: list[str] = []  #: queues that are consumed again at the end

    def task_lists(self) -> list[str]:
        """Return the queues of the worker, also while it is drained: it stays registered."""
        return sorted({*self._left, *self._consumed()})

    def check(self, _: Engine) -> None:
        if self._server.is_drained:
            # Also queues that somebody has added since, by remote control.
            for queue in list(self._consumed()):
                self._left.append(queue)
                self._cancel(queue)
        elif self._left:
            left, self._left = self._left, []
            for queue in left:
                self._consume(queue)
