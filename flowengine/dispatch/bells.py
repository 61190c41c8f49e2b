"""Bells."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

log = logging.getLogger("flowengine")

DRAIN = "flowengine.drain"  #: the doorway that answers a bell


class Bell(Protocol):
    """Tells workers that task lists have something due."""

    def ring(self, due: Mapping[str, int]) -> None:
        """Say that each of these lists has about so many tasks to be claimed."""


class SilentBell:
    """Rings for nobody: work is found by looking."""

    def ring(self, due: Mapping[str, int]) -> None:
        return None


class CeleryBell:
    """Sends Celery messages, by task name, to the queue of the task list's own name.

    A broker that cannot be reached stops nobody: the rows are committed, and the watchdog
    rings for them when it is back.
    """

    def __init__(self, app: Any, *, most: int) -> None:
        self._app, self._most = app, most

    def ring(self, due: Mapping[str, int]) -> None:
        for task_list, count in due.items():
            self._send(task_list, min(count, self._most), queue=task_list)

    def _send(self, task_list: str, count: int, queue: str) -> None:
        try:
            with self._app.producer_or_acquire() as producer:
                for _ in range(count):
                    self._app.send_task(
                        DRAIN,
                        args=(task_list,),
                        queue=queue,
                        producer=producer,
                        ignore_result=True,
                        retry=False,
                        argsrepr=f"({task_list!r},)",
                    )
        except Exception as problem:
            log.warning(
                "could not ring for %s: %s", task_list, problem, extra={"action": "bell_lost"}
            )


class LocalBell(CeleryBell):
    """Rings in this process alone, through one queue, and knows which bells were answered.

    No more bells are under way than can be answered: more would only find nothing.
    """

    def __init__(self, app: Any, *, answerers: int, queue: str) -> None:
        super().__init__(app, most=answerers)
        self._queue = queue
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    def ring(self, due: Mapping[str, int]) -> None:
        for task_list, count in due.items():
            self._send(task_list, self._room(task_list, count), queue=self._queue)

    def _room(self, task_list: str, count: int) -> int:
        with self._lock:
            room = max(0, min(count, self._most - self._under_way[task_list]))
            self._under_way[task_list] += room
            return room

    def heard(self, task_list: str) -> None:
        """Note that a bell has been answered."""
        with self._lock:
            self._under_way[task_list] = max(0, self._under_way[task_list] - 1)

    def forget(self) -> None:
        """Take all bells for lost. A bell that never arrived must not silence the next."""
        with self._lock:
            self._under_way.clear()
