"""Bells."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flowengine.dispatch.debounce import Debounce
from flowengine.dispatch.id_packing import packed

log = logging.getLogger("flowengine")

DRAIN = "flowengine.drain"  #: the doorway that answers a bell
WORK = "flowengine.work"  #: the doorway for given tasks
EVALUATE = "flowengine.evaluate"  #: the doorway to the evaluator

#: Groups of more tasks are sent as a chord, with so many in a message at least.
WIDE = 50
#: Tasks in one message of a chord at most: it stays below 4 KiB.
MOST = 125
#: So many messages a chord has before they grow: everybody should get one.
MESSAGES = 8

#: A connection that broke is made anew, once and at once. Whoever rings has other things to do
#: than to wait for a broker, and Celery by itself would wait for seconds, at each message.
_AT_ONCE = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
_QUIET = 1.0  # seconds without another attempt after a broker was not there


_NO_CANVAS = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_HEADERS = {
    "lang": "py",
    "task": DRAIN,
    "parent_id": None,
    "group": None,
    "retries": 0,
    "eta": None,
    "expires": None,
    "timelimit": [None, None],
    "kwargsrepr": "{}",
    "origin": "flowengine",
    "ignore_result": True,
}


@dataclass(frozen=True, slots=True)
class Group:
    """Tasks that feed one join and enable nothing alone."""

    task_list: str
    task_ids: list[str]


def batches(task_ids: Sequence[str]) -> list[Sequence[str]]:
    """Part the tasks of a group for the messages of its chord."""
    size = min(max(math.ceil(len(task_ids) / MESSAGES), WIDE), MOST)
    return [task_ids[at : at + size] for at in range(0, len(task_ids), size)]


class Notifier(Protocol):
    """Tells workers that task lists have something due."""

    def notify(self, due: Mapping[str, int]) -> None:
        """Say that each of these lists has about so many tasks to be claimed."""

    def gather(self, run_id: str, groups: Iterable[Group]) -> None:
        """Have the tasks of each group done, and the run evaluated after the last."""

    def hurry(self) -> None:
        """Ring now what may have been put off: somebody waits."""


class NullNotifier:
    """Rings for nobody: work is found by looking."""

    def notify(self, due: Mapping[str, int]) -> None:
        return None

    def gather(self, run_id: str, groups: Iterable[Group]) -> None:
        return None

    def hurry(self) -> None:
        return None


class CeleryNotifier:
    """Sends Celery messages, by task name, to the queue of the task list's own name.

    A broker that cannot be reached stops nobody: the rows are committed, and the watchdog
    rings for them when it is back.
    """

    def __init__(self, app: Any, *, most: int, control_queue: str, pause: float = 0.0) -> None:
        self._app, self._most, self._control_queue = app, most, control_queue
        self._quiet_until = 0.0
        self._coalescing = Debounce(self._notify_now, pause)

    def notify(self, due: Mapping[str, int]) -> None:
        self._coalescing(due)

    def hurry(self) -> None:
        self._coalescing.flush()

    def _notify_now(self, due: Mapping[str, int]) -> None:
        for task_list, count in due.items():
            self._send(task_list, min(count, self._most), queue=self._queue_of(task_list))

    def gather(self, run_id: str, groups: Iterable[Group]) -> None:
        """Send a wide group as one chord: batches of ids, and the evaluator as its callback.

        The chord is a hint. Whatever becomes of it, the tasks are rows and are counted in SQL;
        where the result backend is bad at chords, the last reporter evaluates.
        """
        for group in groups:
            if len(group.task_ids) <= WIDE or not self._has_chords():
                self.notify({group.task_list: len(group.task_ids)})
                continue
            self._publish(functools.partial(self._send_chord, run_id, group))

    def _has_chords(self) -> bool:
        backend = self._app.backend
        try:
            backend.ensure_chords_allowed()  # rpc:// counts itself among those that can
        except NotImplementedError:
            return False
        return bool(getattr(backend, "supports_native_join", False))

    def _send_chord(self, run_id: str, group: Group, producer: Any) -> None:
        from celery import chord

        queue = self._queue_of(group.task_list)
        headers = [
            self._app.signature(
                WORK,
                args=(group.task_list, packed(batch)),
                immutable=True,
                queue=queue,
                # Celery would add a kilobyte of ids for people to read.
                argsrepr=f"({group.task_list!r}, [{len(batch)} tasks])",
            )
            for batch in batches(group.task_ids)
        ]
        body = self._app.signature(
            EVALUATE, args=(run_id,), immutable=True, queue=self._control_queue
        )
        chord(headers, body=body, app=self._app).apply_async(producer=producer, retry=False)

    def _queue_of(self, task_list: str) -> str:
        return task_list

    def _send(self, task_list: str, wake: int, queue: str) -> None:
        """Send one bell. Who hears it wakes the others it is meant for, if there is work left."""

        message_id = str(uuid.uuid4())

        def send(producer: Any) -> None:
            # As Celery's `send_task` does it, without what a bell has no use for; and to the
            # default exchange, which leads to the queue of that name on every broker: for
            # another one Redis would have to be asked first.
            told = self._app.amqp.queues[queue]
            producer.publish(
                ((task_list, wake), {}, _NO_CANVAS),
                exchange="",
                routing_key=told.name,
                declare=[told],
                serializer="json",
                correlation_id=message_id,
                headers={
                    **_HEADERS,
                    "id": message_id,
                    "root_id": message_id,
                    "argsrepr": f"({task_list!r},)",
                },
                retry=True,
                retry_policy=_AT_ONCE,
            )

        self._publish(send)

    def _publish(self, send: Callable[[Any], None]) -> None:
        if time.monotonic() < self._quiet_until:
            return  # the watchdog rings for it
        try:
            with self._app.producer_or_acquire() as producer:
                producer.connection.ensure_connection(**_AT_ONCE)
                send(producer)
        except Exception as problem:
            if not isinstance(problem, LookupError):  # a queue that the app does not know
                self._quiet_until = time.monotonic() + _QUIET
            log.warning("could not ring: %s", problem, extra={"action": "bell_lost"})


class LocalNotifier(CeleryNotifier):
    """Rings in this process alone, through one queue, and knows which bells were answered.

    No more bells are under way than can be answered: more would only find nothing.
    """

    def __init__(self, app: Any, *, answerers: int, queue: str) -> None:
        super().__init__(app, most=answerers, control_queue=queue)
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    def notify(self, due: Mapping[str, int]) -> None:
        for task_list, count in due.items():
            if self._has_room(task_list):
                self._send(task_list, min(count, self._most), queue=self._control_queue)

    def _queue_of(self, task_list: str) -> str:
        return self._control_queue

    def _has_room(self, task_list: str) -> bool:
        with self._lock:
            has_room = self._under_way[task_list] < self._most
            self._under_way[task_list] += has_room
            return has_room

    def heard(self, task_list: str) -> None:
        """Note that a bell has been answered."""
        with self._lock:
            self._under_way[task_list] = max(0, self._under_way[task_list] - 1)

    def forget(self) -> None:
        """Take all bells for lost. A bell that never arrived must not silence the next."""
        with self._lock:
            self._under_way.clear()
