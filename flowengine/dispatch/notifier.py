"""Notifiers: they send the wake-up messages."""

from __future__ import annotations

import functools
import logging
import math
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flowengine.dispatch.debounce import Debounce
from flowengine.dispatch.packed_ids import MOST, packed
from flowengine.dispatch.publisher import RETRY_POLICY, Publisher
from flowengine.fork import at_fork
from flowengine.message_keys import MessageKeys

log = logging.getLogger("flowengine")

DRAIN = "flowengine.drain"  #: the Celery task that a wake-up message calls
WORK = "flowengine.work"  #: the Celery task for the tasks named in its message
EVALUATE = "flowengine.evaluate"  #: the Celery task that evaluates a run

#: A group of more tasks is sent as a chord, with at least this number in one message.
WIDE = 50
#: Number of messages of a chord before they grow, so that every worker gets one.
MESSAGES = 8

_NO_CANVAS = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_HEADERS = {
    "lang": "py",
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
    """Divide the tasks of a group among the messages of its chord."""
    size = min(max(math.ceil(len(task_ids) / MESSAGES), WIDE), MOST)
    return [task_ids[at : at + size] for at in range(0, len(task_ids), size)]


class Notifier(Protocol):
    """Wakes workers when task lists have due tasks."""

    def notify(self, due: Mapping[str, int]) -> None:
        """Wake workers of these lists; each has about this number of due tasks."""

    def repeat(self, due: Mapping[str, int]) -> None:
        """Do the same for recovery, whatever number of wake-ups waits in the queues."""

    def pass_on(self, task_list: str, wake: int, hops: int) -> None:
        """Give a wake-up to the next worker of the list, which may pass it on `hops` times."""

    def dispatch_groups(self, run_id: str, groups: Iterable[Group]) -> None:
        """Have the tasks of each group executed, and the run evaluated after the last."""

    def evaluate(self, run_id: str) -> bool:
        """Have a worker consume the run's inbox; False if no worker receives messages."""

    def flush(self) -> None:
        """Send delayed wake-ups now: a caller waits for a run."""


class NullNotifier:
    """Sends nothing: workers poll."""

    def notify(self, due: Mapping[str, int]) -> None:
        return None

    def repeat(self, due: Mapping[str, int]) -> None:
        self.notify(due)

    def pass_on(self, task_list: str, wake: int, hops: int) -> None:
        return None

    def dispatch_groups(self, run_id: str, groups: Iterable[Group]) -> None:
        return None

    def evaluate(self, run_id: str) -> bool:
        return False

    def flush(self) -> None:
        return None


class CeleryNotifier:
    """Sends Celery messages, by task name, to the queue of the task list's own name.

    A broker that cannot be reached stops no caller: the rows are committed, and recovery
    sends their wake-ups later.
    """

    def __init__(
        self,
        app: Any,
        *,
        most: int,
        control_queue: str,
        pause: float = 0.0,
        keys: MessageKeys | None = None,
    ) -> None:
        self._app, self._most, self._control_queue = app, most, control_queue
        self._keys = keys or MessageKeys()
        self._publisher = Publisher(app)
        self._debounce = Debounce(self._notify_now, pause)
        self._lock = threading.Lock()
        #: Messages of each list that this process sent and that may not have been consumed.
        self._outstanding: Counter[str] = Counter()
        at_fork(in_child=self.forked)

    def forked(self) -> None:
        self._lock, self._outstanding = threading.Lock(), Counter()
        self._publisher.forked()

    def notify(self, due: Mapping[str, int]) -> None:
        self._debounce(due)

    def repeat(self, due: Mapping[str, int]) -> None:
        for task_list, count in due.items():
            self._send(task_list, min(count, self._most))

    def pass_on(self, task_list: str, wake: int, hops: int) -> None:
        self._send(task_list, wake, hops)

    def flush(self) -> None:
        self._debounce.flush()

    def consumed(self, task_list: str) -> None:
        """Note that this process consumed a wake-up: it may send one without asking."""
        with self._lock:
            self._outstanding[task_list] = max(0, self._outstanding[task_list] - 1)

    def _notify_now(self, due: Mapping[str, int]) -> None:
        for task_list, count in due.items():
            if self._has_room(task_list):
                self._send(task_list, min(count, self._most))

    def _has_room(self, task_list: str) -> bool:
        """Return whether another wake-up of the list is of use.

        One that waits in the queue wakes for every task committed before it is consumed. So after
        `most` messages the broker is asked how many wait, and at `most` there none is added. The
        question costs as much as a message, so each answer holds for `most` messages: this process
        leaves twice as many at most.
        """
        with self._lock:
            if self._outstanding[task_list] < self._most:
                self._outstanding[task_list] += 1
                return True
        waiting = self._publisher.queue_length(self._queue_name(task_list))
        with self._lock:
            self._outstanding[task_list] = 1 if waiting < self._most else self._most
        return waiting < self._most

    def dispatch_groups(self, run_id: str, groups: Iterable[Group]) -> None:
        """Send a wide group as one chord: batches of ids, and the evaluator as its callback.

        The chord is a hint. If it is lost, recovery finds the tasks, and the join counter in SQL
        decides; where the result backend has no native chords, the last reporter evaluates.
        """
        for group in groups:
            is_wide = len(group.task_ids) > WIDE and self._has_chords()
            # Not by `publish`: the result backend's connection has no short time limit.
            if not is_wide or not self._publisher.publish_in_thread(
                functools.partial(self._send_chord, run_id, group)
            ):
                self.notify({group.task_list: len(group.task_ids)})

    def _has_chords(self) -> bool:
        backend = self._app.backend
        try:
            backend.ensure_chords_allowed()  # rpc:// claims native joins and refuses chords
        except NotImplementedError:
            return False
        return bool(getattr(backend, "supports_native_join", False))

    def _send_chord(self, run_id: str, group: Group, producer: Any) -> None:
        from celery import chord

        backend = self._app.backend
        is_own = not getattr(backend, "thread_safe", False)  # this thread's alone
        if is_own and hasattr(backend, "result_consumer"):
            backend.result_consumer = _NoSubscriptions()
        queue = self._queue_name(group.task_list)
        headers = [
            self._signature(
                WORK,
                (group.task_list, packed(batch)),
                queue=queue,
                # Celery would add a kilobyte of ids for display.
                argsrepr=f"({group.task_list!r}, [{len(batch)} tasks])",
            )
            for batch in batches(group.task_ids)
        ]
        body = self._signature(EVALUATE, (run_id,), queue=self._control_queue)
        result = chord(headers, body=body, app=self._app).apply_async(
            producer=producer, retry=False
        )
        _forget(result.parent)

    def _signature(self, task: str, args: tuple[str, ...], **options: Any) -> Any:
        """Return a part of a chord. The callback is signed here too: workers sign nothing that a
        message asks them to send, for that message may be forged.
        """
        if self._keys:
            options["headers"] = self._keys.headers(task, args)
        return self._app.signature(task, args=args, immutable=True, **options)

    def _queue_name(self, task_list: str) -> str:
        return task_list

    def evaluate(self, run_id: str) -> bool:
        self._publish(EVALUATE, (run_id,), self._control_queue, f"({run_id!r},)")
        return True  # if the message is lost, recovery finds the run's inbox

    def _send(self, task_list: str, wake: int, *hops: int) -> None:
        """Send one wake-up. Its consumer wakes the others it is meant for, if work is left."""
        queue = self._queue_name(task_list)
        self._publish(DRAIN, (task_list, wake, *hops), queue, f"({task_list!r},)")

    def _publish(self, task: str, args: tuple[Any, ...], queue_name: str, shown: str) -> None:
        message_id = str(uuid.uuid4())
        signature = self._keys.headers(task, args)

        def send(producer: Any) -> None:
            # As Celery's `send_task` does it, without the parts that a wake-up does not use; and
            # to the default exchange, which leads to the queue of that name on every broker: for
            # another one Redis would have to be asked first.
            queue = self._app.amqp.queues[queue_name]
            producer.publish(
                (args, {}, _NO_CANVAS),
                exchange="",
                routing_key=queue.name,
                declare=[queue],
                serializer="json",
                correlation_id=message_id,
                headers={
                    **_HEADERS,
                    "task": task,
                    "id": message_id,
                    "root_id": message_id,
                    "argsrepr": shown,
                    **signature,
                },
                retry=True,
                retry_policy=RETRY_POLICY,
            )

        self._publisher.publish(send)


class _NoSubscriptions:
    """Takes the place of a backend's result consumer, for nobody reads results of headers.

    Celery would subscribe to each, and unsubscribe when it is garbage collected: in any thread,
    and for as long as Redis hangs.
    """

    def __getattr__(self, name: str) -> _NoSubscriptions:
        return self

    def __call__(self, *_args: object, **_kwargs: object) -> None:
        return None


def _forget(group_result: Any) -> None:
    """Drop the results of a chord's headers, which a backend keeps until they arrive."""
    for result in getattr(group_result, "results", None) or ():
        result.backend.remove_pending_result(result)
