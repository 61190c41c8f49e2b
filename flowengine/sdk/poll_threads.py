"""The threads of a poller: each works on due tasks when it is woken.

Wake-ups are tickets. A ticket says how many threads it is meant for: its thread wakes the others if
there is more to do than it claims. There is at most one ticket for each thread, because a further
one would find nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from flowengine.sdk.pace import PollPace
from flowengine.store.failures import is_unavailable
from flowengine.worker.outage_log import OutageLog

log = logging.getLogger("flowengine")


class PollThreads:
    def __init__(
        self,
        number: int,
        work: Callable[[int], int],
        pace: PollPace,
        outages: OutageLog,
        task_list: str,
    ) -> None:
        """`work` works on due tasks for a ticket, and returns how many it has done.

        The log names the threads by their task list.
        """
        self._number, self._do, self._pace, self._outages = number, work, pace, outages
        self._task_list = task_list
        self._changed = threading.Condition()
        self._tickets: deque[int] = deque()
        self._is_stopping = self._has_worked = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"flowengine-poller-{n}", daemon=True)
            for n in range(number)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wake(self, due: int) -> None:
        """Wake threads for that number of due tasks; 0: for an unknown number."""
        with self._changed:
            room = self._number - len(self._tickets)
            if due:
                tickets = [1] * min(due, room)
            else:  # a ticket that waits finds the same tasks
                tickets = [] if self._tickets else [self._number]
            self._tickets.extend(tickets)
            self._changed.notify_all()  # the thread that polls waits for it too

    def keep_polling(self, is_notified: Callable[[], bool]) -> None:
        """Wake a thread at the pace of the poller, until it is stopped."""
        self.wake(0)
        while True:
            pause = self._pace.pause(is_notified=is_notified())
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or self._has_worked, pause)
                if self._is_stopping:
                    return
                if self._has_worked:  # more may follow soon
                    self._has_worked = False
                    self._pace.worked()
                    continue
            self.wake(0)

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    @property
    def has_current_thread(self) -> bool:
        return threading.current_thread() in self._threads

    def join(self, seconds: float) -> None:
        """Wait for each thread for that time; one whose callback does not return is left."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(seconds)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or self._tickets)
                if self._is_stopping:
                    return
                ticket = self._tickets.popleft()
            done = self._work(ticket)
            if done:
                with self._changed:
                    self._has_worked = True
                    self._changed.notify_all()

    def _work(self, ticket: int) -> int:
        try:
            with self._outages.watch():
                return self._do(ticket)
        except Exception as problem:
            about = {"action": "poll_failed"}
            if is_unavailable(problem):  # counted; the next poll repeats it
                log.debug(
                    "a poll of task list %s failed: %s", self._task_list, problem, extra=about
                )
            else:
                log.exception(
                    "a poll of task list %s failed; the next poll repeats it",
                    self._task_list,
                    extra=about,
                )
        except BaseException as problem:  # `sys.exit` in a callback: its try is lost, no more
            log.warning(
                "%s in a callback of task list %s: its try counts as lost; the poller goes on",
                type(problem).__name__,
                self._task_list,
                extra={"action": "poll_failed"},
            )
            return 1
        return 0
