"""Threads that the code of a step starts, and calls that it submits to pools of threads.

Neither inherits context variables, so each is told its step here, for its lines alone. The
reference is weak: a thread that goes on when its try has ended, or that serves others then, belongs
to no step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from flowengine.log_context import LoggedStep, logged_step


class _Serving(threading.local):
    """The step that this thread works for without having its context."""

    step: Callable[[], LoggedStep | None] | None = None
    is_submitting = False  #: a thread that is started meanwhile belongs to the pool


_serving = _Serving()


def step_of_lines() -> LoggedStep | None:
    """Return the step whose code this thread runs now."""
    step = logged_step.get(None)
    if step is None and _serving.step is not None:
        step = _serving.step()
    return step


_start, _submit = threading.Thread.start, ThreadPoolExecutor.submit


def _start_for_step(thread: threading.Thread) -> None:
    step = None if _serving.is_submitting else step_of_lines()
    if step is not None:
        run, reference = thread.run, weakref.ref(step)

        def run_for_step() -> None:
            vars(thread).pop("run", None)  # it refers to the thread
            _serving.step = reference
            run()

        thread.run = run_for_step  # type: ignore[method-assign]
    _start(thread)


def _submit_for_step(
    pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **more: Any
) -> Future[Any]:
    step = step_of_lines()
    if step is None:
        return _submit(pool, function, *args, **more)
    outer, _serving.is_submitting = _serving.is_submitting, True
    try:
        return _submit(pool, _call_for_step, weakref.ref(step), function, *args, **more)
    finally:
        _serving.is_submitting = outer


def _call_for_step(
    step: Callable[[], LoggedStep | None], function: Callable[..., Any], /, *args: Any, **more: Any
) -> Any:
    outer, _serving.step = _serving.step, step
    try:
        return function(*args, **more)
    finally:
        _serving.step = outer


def follow_threads() -> None:
    """Have the threads of this process know their steps; called once."""
    threading.Thread.start = _start_for_step  # type: ignore[method-assign, assignment]
    ThreadPoolExecutor.submit = _submit_for_step  # type: ignore[method-assign, assignment]
