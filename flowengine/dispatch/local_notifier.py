"""Wake-ups for the threads of one process.

The threads share the interpreter. While they keep it busy with quick tasks, another thread would
take it from them, and the change of threads costs more than a quick task. So a thread that works
on quick tasks promises to claim from its task list again. Until then wake-ups of the list are held
back while the process is busy, and the promised claim finds their tasks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from flowengine.dispatch.notifier import CeleryNotifier

_SAMPLE = 0.02  # seconds over which the load of the process is measured
_BUSY = 0.6  # of a processor: Python code of more threads would wait for the interpreter


class ProcessLoad:
    """Whether the threads of this process keep the interpreter busy.

    It was busy in one of the last two samples: a disk, or a machine, that halts for some
    milliseconds leaves no work for more threads.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
    ) -> None:
        """`used` returns the seconds of a processor that the process has used."""
        self._clock, self._used = clock, used
        self._began, self._used_before = clock(), used()
        self._is_busy = self._was_busy = False

    @property
    def is_busy(self) -> bool:
        now = self._clock()
        seconds = now - self._began
        if seconds >= _SAMPLE:
            used = self._used()
            self._was_busy = self._is_busy
            self._is_busy = used - self._used_before >= _BUSY * seconds
            self._began, self._used_before = now, used
        return self._is_busy or self._was_busy


class ClaimPromise:
    """The promise of one thread to claim from a task list again.

    The batch guard withdraws it from another thread, if a task of the batch takes long.
    """

    def __init__(self, notifier: LocalNotifier, task_list: str) -> None:
        self._notifier, self._task_list = notifier, task_list
        self.is_made = False

    def claim(self) -> int:
        """Note that the thread is about to claim, and promise to claim again.

        Returns the number of due tasks whose wake-ups were held back: if the claim leaves some of
        them, others have to be woken.
        """
        with self._notifier.lock:
            if not self.is_made:
                self.is_made = True
                self._notifier.promised[self._task_list] += 1
            return self._notifier.held_back.pop(self._task_list, 0)

    def claimed(self, are_quick: bool) -> None:
        """Note whether all tasks of the claim are quick; the promise is withdrawn if not."""
        with self._notifier.lock:
            self._notifier.has_quick[self._task_list] = are_quick
        if not are_quick:
            self.withdraw()

    def end(self) -> bool:
        """Take the promise back; False if a wake-up was held back since the last claim."""
        with self._notifier.lock:
            if self.is_made and self._notifier.held_back[self._task_list]:
                return False
            self._take_back()
            return True

    def leave_to_others(self, is_more: bool) -> bool:
        """Take the promise back if the process is busy and another thread has made one, too.

        If the last claim left tasks (`is_more`), that thread must not end without another claim,
        and has to wake a further one if that claim leaves tasks, too.
        """
        with self._notifier.lock:
            is_left = self.is_made and self._notifier.is_crowded(self._task_list)
            if is_left:
                self._take_back()
                self._notifier.held_back[self._task_list] += 2 * is_more
            return is_left

    def withdraw(self) -> None:
        """Take the promise back. Wake-ups that were held back are sent, unless another thread has
        made a promise, which holds for them, too.
        """
        with self._notifier.lock:
            if not self.is_made:
                return
            self._take_back()
            is_last = not self._notifier.promised[self._task_list]
            held_back = self._notifier.held_back.pop(self._task_list, 0) if is_last else 0
        if held_back:
            self._notifier.notify({self._task_list: held_back})

    def _take_back(self) -> None:
        if self.is_made:
            self.is_made = False
            self._notifier.promised[self._task_list] -= 1


class NoPromise(ClaimPromise):
    """Of a process whose wake-ups are never held back."""

    def __init__(self) -> None:
        self.is_made = False

    def claim(self) -> int:
        return 0

    def claimed(self, are_quick: bool) -> None:
        return None

    def end(self) -> bool:
        return True

    def leave_to_others(self, is_more: bool) -> bool:
        return False

    def withdraw(self) -> None:
        return None


NO_PROMISE = NoPromise()


class LocalNotifier(CeleryNotifier):
    """Wakes the threads of this process alone, through one queue.

    At most one wake-up of a list is sent per thread: a further one would find nothing.
    """

    def __init__(
        self, app: Any, *, threads: int, queue: str, load: ProcessLoad | None = None
    ) -> None:
        """`load` says when wake-ups are held back; without it none is."""
        super().__init__(app, most=threads, control_queue=queue)
        self._load = load
        self._begin()

    def _begin(self) -> None:
        self.lock = threading.Lock()  #: of the three that follow
        self.promised: Counter[str] = Counter()  #: claims that threads are going to make
        self.held_back: Counter[str] = Counter()  #: due tasks whose wake-ups wait for such a claim
        #: Whether the last claim from a list was of quick tasks alone.
        self.has_quick: dict[str, bool] = {}

    def forked(self) -> None:
        super().forked()
        self._begin()

    def promise(self, task_list: str) -> ClaimPromise:
        return ClaimPromise(self, task_list)

    def notify(self, due: Mapping[str, int]) -> None:
        self._notify_now(
            {name: count for name, count in due.items() if not self._holds(name, count)}
        )

    def _holds(self, task_list: str, count: int) -> bool:
        if self._load is None or not self.has_quick.get(task_list):
            return False
        with self.lock:
            is_sure = self.promised[task_list] > 0 or self._outstanding[task_list] > 0
            is_held = is_sure and self._load.is_busy
            if is_held:
                self.held_back[task_list] += count
            return is_held

    def is_crowded(self, task_list: str) -> bool:
        """Whether several threads will claim from a list, and the process is busy."""
        return self.promised[task_list] > 1 and self._load is not None and self._load.is_busy

    def repeat(self, due: Mapping[str, int]) -> None:
        self._notify_now(due)

    def pass_on(self, task_list: str, wake: int, hops: int) -> None:
        return None  # every thread has the same code

    def _queue_name(self, task_list: str) -> str:
        return self._control_queue

    def _has_room(self, task_list: str) -> bool:
        with self._lock:
            has_room = self._outstanding[task_list] < self._most
            self._outstanding[task_list] += has_room
            return has_room

    def forget(self) -> None:
        """Take all wake-ups for lost. One that never arrived must not suppress the next."""
        with self._lock:
            self._outstanding.clear()
