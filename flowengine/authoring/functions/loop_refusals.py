"""Parts of asyncio that a durable function cannot use, each with its replacement.

The loop of a function has no threads, no sockets and no clock of its own: the end of anything that
is no call would be in no record. Python itself refuses some uses, with errors that name no
replacement; `explained` adds it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections.abc import Callable
from pathlib import PurePath
from types import TracebackType
from typing import Any

from flowengine.authoring.locations import user_location
from flowengine.errors import FunctionMisuse
from flowengine.program.nodes import Location

_IN_A_FACET = "do it in an event facet and await its call"
_THREADS = "uses threads", "do it in an event facet and await its call, or await step(fn, …)"
_RUNS = "runs a loop", "the engine runs this one: await the coroutine, or asyncio.create_task(…)"
_PATTERNS: tuple[tuple[str, tuple[str, str]], ...] = (
    (r"run_in_executor|.*_default_executor|call_soon_threadsafe", _THREADS),
    (r".*signal.*", ("handles signals", "wait for an answer from outside with wait_for(…)")),
    (r"run_.*|stop|close|shutdown_.*", _RUNS),
    (r"subprocess_.*", ("starts a process", _IN_A_FACET)),
    (r"sock_.*|create_.*|connect_.*|add_.*|remove_.*|getaddrinfo|getnameinfo|start_tls|sendfile",
     ("does input or output", _IN_A_FACET)),
    (r".*", ("changes the loop", "leave it out")),
)  # fmt: skip


def refuse_the_rest(loop_class: type[asyncio.AbstractEventLoop]) -> None:
    """Refuse every method of an event loop that the class does not define."""
    for name, method in vars(asyncio.AbstractEventLoop).items():
        if not name.startswith("_") and callable(method) and name not in vars(loop_class):
            setattr(loop_class, name, _refusal(name))


def _refusal(name: str) -> Callable[..., Any]:
    did, cure = next(found for pattern, found in _PATTERNS if re.fullmatch(pattern, name))

    def refuse(*_args: object, **_kwargs: object) -> Any:
        raise FunctionMisuse(
            f"{user_location()}: loop.{name} {did}, which no replay of a durable function could "
            f"repeat: {cure}"
        )

    refuse.__name__ = name
    return refuse


#: Messages of RuntimeErrors of asyncio.
_EXPLAINED = (
    (r"asyncio\.run\(\) cannot|Cannot run the event loop|Runner\.run\(\) cannot|"
     r"This event loop is already running",
     "a durable function runs in a loop already: await the coroutine"),
    (r".* got Future .* attached to a different loop",
     f"it waits for a future of another loop, whose end is in no record: {_IN_A_FACET}"),
    (r"Task got bad yield|.*yield was used instead of yield from",
     "it awaits something that is neither a call nor of asyncio: "
     "await calls of facets, and do input and output in event facets"),
)  # fmt: skip
_ASYNCIO = str(PurePath(asyncio.__file__).parent) + os.sep


def explained(problem: BaseException) -> BaseException:
    """Return a refusal of asyncio with its cure and the author's line, any other error as it is."""
    if type(problem) is not RuntimeError:
        return problem
    for pattern, cure in _EXPLAINED:
        if re.match(pattern, str(problem), re.DOTALL):
            line = _author_line(problem.__traceback__)
            found = FunctionMisuse(f"{line}: {cure} ({problem})")
            return found.with_traceback(problem.__traceback__)
    return problem


def _author_line(trace: TracebackType | None) -> Location:
    """Return the line that called asyncio; close coroutines that were given to it and never run."""
    line = Location(0, file="?")
    while trace is not None:
        frame = trace.tb_frame
        if not frame.f_code.co_filename.startswith(_ASYNCIO):
            line = Location(trace.tb_lineno, file=frame.f_code.co_filename)
        else:
            for value in filter(inspect.iscoroutine, frame.f_locals.values()):
                if inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
                    value.close()
        trace = trace.tb_next
    return line
