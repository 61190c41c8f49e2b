"""The event loop of a durable function: the same ends in the same order give the same calls.

It runs ready callbacks in their order until none is left, and then it rests: it never waits. Its
time is that of the last end which the function heard. A timer is not fired by a clock: the
activation records it as a call, and its end makes it ready. Futures and tasks hash by their
number, because `asyncio.wait` and `asyncio.TaskGroup` keep them in sets, and the order of a set
follows from the hashes: by address it would differ between processes.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import asyncio.log
import collections
import contextlib
import contextvars
import inspect
import sys
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final

from flowengine.authoring.functions.loop_refusals import refuse_the_rest
from flowengine.authoring.locations import user_location
from flowengine.errors import FunctionMisuse
from flowengine.program.wait_times import sleep_problem

_log = asyncio.log.logger  # errors of tasks that nobody awaits are logged as by asyncio
_MAX_WAITS: Final = 1_000  # in the `finally` blocks of one dropped coroutine


class FunctionFuture(asyncio.Future[Any]):
    """A future that hashes by its number."""

    def __init__(self, *, loop: FunctionLoop) -> None:
        self._number = loop.next_hash()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class FunctionTask(asyncio.Task[Any]):
    """A task that hashes by its number."""

    def __init__(self, coro: Any, *, loop: FunctionLoop, number: int, **options: Any) -> None:
        self._number = loop.next_hash()  # Task.__init__ hashes it
        options["name"] = options.get("name") or f"Task-{number}"
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class FunctionTimer(asyncio.TimerHandle):
    """A timer, which is recorded as a call if it still waits when the loop rests."""

    def __init__(self, when: float, seconds: float, *handle: Any) -> None:
        super().__init__(when, *handle)
        self.seconds, self.line = seconds, user_location()
        self.number: int | None = None  #: of its call


class Dropped(BaseException):
    """Raised in a dropped function where it waits. Nobody need catch it."""


class Spinning(Exception):
    """The loop does not come to rest."""


class FunctionLoop(asyncio.AbstractEventLoop):
    """An event loop without clock, threads and input or output."""

    def __init__(self, hash_base: int, started: int) -> None:
        self.now_ms = started  #: milliseconds since the epoch
        self.new_timers: list[FunctionTimer] = []  #: not recorded yet
        self.at_cancelled_timer: Callable[[int], object] = lambda _: None
        self.is_stopped = False  #: no further callback is run
        self.is_dropped = False  #: coroutines are being closed, or have been
        self._ready: collections.deque[asyncio.Handle] = collections.deque()
        self._next_hash = hash_base  # differs from loop to loop: tasks of all are in one set
        self._tasks: list[FunctionTask] = []
        self._task_count = 0
        self._pruned_at = 64
        self._generators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._exception_handler: Callable[..., object] | None = None

    def next_hash(self) -> int:
        self._next_hash += 1
        return self._next_hash

    # --- Running ----------------------------------------------------------------------------

    def rest(self, main: asyncio.Future[Any], most: int) -> None:
        """Run callbacks until none is ready, `main` has ended or the loop is stopped.

        Raises Spinning after `most` iterations.
        """
        ready = self._ready
        iterations = 0
        while ready:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if main.done() or self.is_stopped:
                    return
            iterations += 1
            if iterations > most:
                raise Spinning

    def fire(self, timer: FunctionTimer) -> None:
        """Make a timer ready."""
        self._ready.append(timer)

    def close_tasks(self) -> None:
        """End the coroutines of all tasks, the oldest first: their `finally` blocks run.

        An `await` in these blocks never returns: the coroutine is ended there too.
        """
        self.is_dropped = True
        self._ready.clear()
        self.new_timers.clear()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coro = task.get_coro()
            if not task.done() and coro is not None:
                _unwind(coro)
        self._tasks.clear()
        for generator in list(self._generators):
            self.end_generator(generator)

    def begin_generator(self, generator: Any) -> None:
        """Called by Python before the first step of an asynchronous generator."""
        self._generators.add(generator)

    def end_generator(self, generator: Any) -> None:
        """Called by Python before it collects an asynchronous generator that has not ended."""
        self._generators.discard(generator)
        if not self.is_dropped:
            self.create_task(generator.aclose())
            return
        closing = generator.aclose()
        with contextlib.suppress(BaseException):
            closing.send(None)
            for _ in range(_MAX_WAITS):  # it awaits something in a `finally` block
                closing.throw(Dropped())

    # --- Of an event loop -------------------------------------------------------------------

    def time(self) -> float:
        return self.now_ms / 1000

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_dropped:
            self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at(self.time() + delay, delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at(when, round(when - self.time(), 3), callback, args, context)

    def _call_at(self, when: float, seconds: float, *handle: Any) -> FunctionTimer:
        callback, args, context = handle
        timer = FunctionTimer(when, seconds, callback, args, self, context)
        if problem := sleep_problem(max(seconds, 0)):
            raise FunctionMisuse(f"{timer.line}: {problem}")
        if not self.is_dropped:
            (self._ready if when <= self.time() else self.new_timers).append(timer)
        return timer

    def _timer_handle_cancelled(self, handle: FunctionTimer) -> None:
        if handle.number is not None:
            self.at_cancelled_timer(handle.number)

    def create_future(self) -> asyncio.Future[Any]:
        return FunctionFuture(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        if self.is_dropped:
            coro.close()
            return self.create_future()  # type: ignore[return-value]
        _refuse_as_completed()
        self._task_count += 1
        task = FunctionTask(coro, loop=self, number=self._task_count, **options)
        self._tasks.append(task)
        if len(self._tasks) >= self._pruned_at:
            self._tasks = [one for one in self._tasks if not one.done()]
            self._pruned_at = 2 * len(self._tasks) + 64
        return task

    def is_running(self) -> bool:
        return asyncio.events._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def get_task_factory(self) -> None:
        return None

    def get_exception_handler(self) -> Callable[..., object] | None:
        return self._exception_handler

    def set_exception_handler(self, handler: Callable[..., object] | None) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        trace = (type(problem), problem, problem.__traceback__) if problem else None
        _log.error(context.get("message", "an error in a durable function"), exc_info=trace)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_dropped:
            return
        if self._exception_handler is None:
            self.default_exception_handler(context)
        else:
            self._exception_handler(self, context)


refuse_the_rest(FunctionLoop)  # type: ignore[type-abstract]

#: Coroutines that catch every Dropped. Kept, because Python would close them once more, outside of
#: their context, where a facet that they call is a plain function.
_abandoned: list[Any] = []


def _unwind(coro: Any) -> None:
    """Raise Dropped where a coroutine waits, again and again if its `finally` blocks wait too.

    `coro.close()` would not do: it ends the outer of two coroutines although the inner one waits
    again, and Python collects the inner one, with the rest of its `finally` blocks, later.
    """
    if inspect.iscoroutine(coro) and inspect.getcoroutinestate(coro) == inspect.CORO_CREATED:
        coro.close()  # it has not begun, and does not
        return
    for _ in range(_MAX_WAITS):
        try:
            coro.throw(Dropped())
        except BaseException:
            return  # it has ended; there is nobody to hear how
    _abandoned.append(coro)


_TASKS = asyncio.as_completed.__code__.co_filename


def _refuse_as_completed() -> None:
    """Raise if `asyncio.as_completed` makes the task: its order is that of addresses."""
    frame, is_refused = sys._getframe(2), False
    while frame.f_code.co_filename == _TASKS:
        if frame.f_code.co_qualname.startswith(("as_completed", "_AsCompletedIterator")):
            is_refused = True
            for given in (frame.f_locals.get("fs"), frame.f_locals.get("aws")):
                for one in filter(asyncio.iscoroutine, given or ()):
                    one.close()
        if frame.f_back is None:
            break
        frame = frame.f_back
    if is_refused:
        raise FunctionMisuse(
            f"{user_location()}: asyncio.as_completed begins coroutines in an order that differs "
            "between processes: give it tasks, "
            "asyncio.as_completed([asyncio.create_task(one) for one in coroutines])"
        )
