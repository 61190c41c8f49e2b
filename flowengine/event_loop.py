"""The event loop of this process for coroutines of facets: one, in a thread of its own.

A client or a pool of connections belongs to the loop of its first use. With one loop per process a
client of a module serves all tries. The thread is a daemon, and so are those of
`asyncio.to_thread`: no coroutine keeps the process from ending.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import queue
import sys
import threading
import traceback
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from flowengine.errors import FlowengineError
from flowengine.fork import at_fork
from flowengine.log_context import LoggedStep, logged_step

T = TypeVar("T")

_CLOSE_SECONDS = 1.0  # that coroutines get to clean up when the process ends
_THREADS = 32  # for `asyncio.to_thread`, as many as asyncio allows at most


class BlockedLoop(FlowengineError):
    """The code waits for a coroutine in the thread that would run it."""

    def __str__(self) -> str:
        return (
            "an async facet is called by code that its event loop runs, which cannot wait: "
            "await the call, or call it with asyncio.to_thread"
        )


class LoopCall:
    """A coroutine on the loop. Its end is a result or an exception of any kind."""

    def __init__(self, awaitable: Awaitable[Any], at_end: Callable[[Any], object]) -> None:
        self._awaitable, self._at_end = awaitable, at_end
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self._ended = threading.Event()
        self._value: Any = None
        self._problem: BaseException | None = None

    def start(self) -> None:
        """Called in the loop, with the context of the caller."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._end)
        if self._is_cancelled:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self._value = await self._awaitable
        except BaseException as problem:
            # Also `SystemExit`: raised, it would end the loop, and all other coroutines with it.
            self._problem = problem

    def _end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before its first step
            self._problem = asyncio.CancelledError()
            if inspect.iscoroutine(self._awaitable):
                self._awaitable.close()
        self._ended.set()
        self._at_end(self)

    def cancel(self) -> None:
        """Called in the loop: raise `CancelledError` where the coroutine waits."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end; False: it has not ended in that time."""
        return self._ended.wait(seconds)

    def result(self) -> Any:
        """Return the value of a coroutine that has ended, or raise its exception."""
        if self._problem is not None:
            raise self._problem
        return self._value


class EventLoop:
    """The loop of one process, started by its first coroutine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.is_closing = False
        self._steps: weakref.WeakKeyDictionary[asyncio.Task[Any], LoggedStep] = (
            weakref.WeakKeyDictionary()
        )

    def submit(
        self, awaitable: Awaitable[Any], at_end: Callable[[LoopCall], object] = lambda _: None
    ) -> LoopCall:
        """Run a coroutine in the context of the caller. `at_end` is called in the loop."""
        call = LoopCall(awaitable, at_end)
        self.call(call.start)
        return call

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, with a copy of the context of the caller."""
        self._started().call_soon_threadsafe(function)

    def run(self, awaitable: Awaitable[T]) -> T:
        """Run a coroutine and wait for its end."""
        call = self.submit(awaitable)
        self.wait(call)
        result: T = call.result()
        return result

    def wait(self, call: LoopCall) -> None:
        try:
            if self._thread is not None and self._thread.ident == threading.get_ident():
                raise BlockedLoop
            call.wait()
        except BaseException:  # also KeyboardInterrupt: nobody waits for it any more
            self.call(call.cancel)
            raise

    def current(self) -> tuple[LoggedStep | None, str]:
        """Return the step whose code the loop runs at this moment, and where that code is."""
        loop, thread = self._loop, self._thread
        task = asyncio.current_task(loop) if loop is not None else None
        frame = sys._current_frames().get(thread.ident or 0) if thread is not None else None
        stack = traceback.extract_stack(frame) if frame is not None else []
        where = f"{stack[-1].filename}:{stack[-1].lineno}" if stack else "unknown"
        return (self._steps.get(task) if task is not None else None), where

    def _started(self) -> asyncio.AbstractEventLoop:
        if (loop := self._loop) is not None:
            return loop
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                loop.set_default_executor(DaemonThreads(_THREADS, "flowengine-to-thread"))
                loop.set_task_factory(self._create_task)
                self._thread = threading.Thread(
                    target=_serve, args=(loop,), name="flowengine-event-loop", daemon=True
                )
                self._thread.start()
                self._loop = loop
            return self._loop

    def _create_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        step = logged_step.get(None)
        if step is not None:
            self._steps[task] = step
        return task

    def close(self) -> None:
        """Cancel all coroutines, and end the loop; one that blocks it is left to the exit."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or loop.is_closed():
            return
        self.is_closing = True
        with contextlib.suppress(RuntimeError):  # it was closed meanwhile
            loop.call_soon_threadsafe(lambda: loop.create_task(_end(loop)))
        thread.join(2 * _CLOSE_SECONDS)

    def forget(self) -> EventLoop:
        """Leave the loop of the parent in a forked child, and return one for the child.

        The old one stays referenced: closing it would close the parent's too, for their
        selectors are one object of the kernel.
        """
        _of_parents.append(self)
        return EventLoop()


_of_parents: list[EventLoop] = []


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
    with contextlib.suppress(Exception):
        await asyncio.wait_for(loop.shutdown_asyncgens(), _CLOSE_SECONDS / 2)
    loop.stop()


class DaemonThreads(ThreadPoolExecutor):
    """Threads of an event loop. Python waits at its exit for those of the base class."""

    def __init__(self, most: int, name: str) -> None:
        super().__init__(max_workers=1)  # its own thread is never started
        self._most, self._name, self._number = most, name, 0
        self._state = threading.Lock()
        self._idle = threading.Semaphore(0)  #: threads that wait for a call, and have none yet
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put(functools.partial(_fulfil, future, function, args, kwargs))
        if not self._idle.acquire(blocking=False):
            with self._state:
                is_needed = self._number < self._most
                self._number += is_needed
            if is_needed:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                self._idle.release()
                call = self._calls.get()
            if call is None:
                return
            call()
            del call  # or it would keep its arguments alive until the next one

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        return None  # the threads end with the process, or with `end`

    def end(self) -> None:
        """Let each thread end after the calls that were submitted before."""
        for _ in range(self._number):
            self._calls.put(None)


def _fulfil(
    future: Future[Any], function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*args, **kwargs)
    except BaseException as problem:
        future.set_exception(problem)
    else:
        future.set_result(result)


_process_loop = EventLoop()


def event_loop() -> EventLoop:
    """Return the loop of this process."""
    return _process_loop


def _forget() -> None:
    global _process_loop
    _process_loop = _process_loop.forget()


at_fork(in_child=_forget)
# Exit handlers run in reverse order: an engine, which is made later, first ends its tries.
atexit.register(lambda: _process_loop.close())
