"""The probe of activations: it finds and names a durable function whose code blocks.

An activation runs until everything in the function waits, which takes milliseconds. One that takes
seconds holds a thread of the worker, and its code will be run again by each replay.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from flowengine.authoring.locations import is_internal
from flowengine.evaluator import TaskDefinition

log = logging.getLogger("flowengine")

BLOCKED_SECONDS = 5.0  #: above the replay of the longest record


@dataclass(slots=True)
class _Running:
    task: TaskDefinition
    since: float
    is_reported: bool = False


class ActivationProbe:
    """Shared by all threads of a process. It takes no lock: each thread has its own entry."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[int, _Running] = {}  #: by thread

    @contextmanager
    def over(self, task: TaskDefinition) -> Iterator[None]:
        """Look after an activation for as long as this thread runs it."""
        thread = threading.get_ident()
        self._running[thread] = _Running(task, self._clock())
        try:
            yield
        finally:
            del self._running[thread]

    def check(self) -> None:
        """Log the activations that do not come to rest, each once."""
        for thread, running in list(self._running.items()):
            seconds = self._clock() - running.since
            if seconds < BLOCKED_SECONDS or running.is_reported:
                continue
            running.is_reported = True
            task = running.task
            log.warning(
                "the durable function %s (%s) has run for %.1f s without a wait, at %s: it holds a "
                "thread of this worker, and each replay repeats it; move the work to an event "
                "facet or to `await step(…)`",
                task.name,
                task.step_path,
                seconds,
                _line(sys._current_frames().get(thread)),
                extra={
                    "action": "function_blocks",
                    "run": task.workflow_id,
                    "facet": task.name,
                },
            )


def _line(frame: FrameType | None) -> str:
    """Return the innermost line outside of this package."""
    while frame is not None and is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return "unknown" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
