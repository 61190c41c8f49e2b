"""Refuse messages of the engine that are not signed, where keys are set.

The check is part of the task itself and not of the consumer, so it holds for every way to it: a
message of either protocol of Celery, and `celery.map` and its kind, which call a task inside
another one's message.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery.exceptions import Ignore

from flowengine.fork import at_fork
from flowengine.message_keys import HEADER, MessageKeys
from flowengine.tasks.rare_lines import RareLines

log = logging.getLogger("flowengine")


class SignatureCheck:
    """Verifies messages; counts and logs those that it refuses."""

    def __init__(
        self,
        keys: MessageKeys,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.keys = keys
        self._clock, self._now = clock, now
        self._forget()
        at_fork(in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._lines = RareLines(self._clock)
        self.refused = 0  #: in this process

    def wake_up(
        self, task: str, request: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Raise `Ignore` unless this idempotent message is signed."""
        self._refuse(task, self.keys.problem(_header(request), task, args, kwargs))

    def once(self, task: str, request: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `Ignore` unless this message is signed with its id, and has not expired."""
        message_id = str(request.id or "")
        given, now = _header(request), self._now()
        self._refuse(task, self.keys.problem(given, task, args, kwargs, message_id, now))

    def _refuse(self, task: str, why: str) -> None:
        if not why:
            return
        with self._lock:
            self.refused += 1
            count = self._lines.due()
        if count:
            log.error(
                "refused %d messages without a valid signature, the last one for %s: %s; check "
                "that all processes have the same FLOWENGINE_MESSAGE_KEYS, and who can write to "
                "the broker",
                count,
                task,
                why,
                extra={"action": "message_refused", "count": count},
            )
        raise Ignore(why)


def _header(request: Any) -> object:
    given = getattr(request, HEADER, None)
    if given is None and isinstance(request.headers, dict):  # a task that is applied in place
        given = request.headers.get(HEADER)
    return given
