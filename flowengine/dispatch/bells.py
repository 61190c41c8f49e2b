"""Bells."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

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
    """Sends a Celery message per bell, by task name.

    No more bells are under way than can be answered: more would only find nothing.
    """

    def __init__(self, app: Any, *, answerers: int, queue: str | None = None) -> None:
        self._app = app
        self._answerers = answerers
        self._queue = queue  # None: the queue of the task list's own name
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    def ring(self, due: Mapping[str, int]) -> None:
        for task_list, count in due.items():
            for _ in range(self._room(task_list, count)):
                self._app.send_task(
                    DRAIN, args=(task_list,), queue=self._queue or task_list, ignore_result=True
                )

    def _room(self, task_list: str, count: int) -> int:
        with self._lock:
            room = max(0, min(count, self._answerers - self._under_way[task_list]))
            self._under_way[task_list] += room
            return room

    def heard(self, task_list: str) -> None:
        """Note that a bell has reached a worker of this process."""
        with self._lock:
            self._under_way[task_list] = max(0, self._under_way[task_list] - 1)

    def forget(self) -> None:
        """Take all bells for lost. A bell that never arrived must not silence the next."""
        with self._lock:
            self._under_way.clear()
