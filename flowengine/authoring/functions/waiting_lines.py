"""The author's line at which a coroutine waits."""

from __future__ import annotations

import asyncio
import os
import sysconfig
from types import FrameType
from typing import Any

from flowengine.authoring.locations import is_internal
from flowengine.program.nodes import Location

GREENLET = "_greenlet"  #: the local name of the greenlet in `plain_form.run_plainly`
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep


def waiting_line(coro: Any) -> Location | None:
    """Return the innermost line of the author's code in a chain of coroutines."""
    line = None
    while coro is not None:
        if isinstance(coro, asyncio.Task):  # it waits for another task
            coro = coro.get_coro()
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "ag_frame", None)
        if frame is not None:
            # Of a plain `def`: its frames are those of a greenlet, which the coroutine waits for.
            inner = frame.f_locals.get(GREENLET) if is_internal(frame.f_code.co_filename) else None
            line = _author_line(frame) or _author_line(getattr(inner, "gr_frame", None)) or line
        coro = getattr(coro, "cr_await", None) or getattr(coro, "ag_await", None)
    return line


def _author_line(frame: FrameType | None) -> Location | None:
    """Return the innermost line of the author's code on a stack; of a coroutine, its own."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_internal(file) and not file.startswith(_STANDARD_LIBRARY):
            return Location(frame.f_lineno, file=file)
        frame = frame.f_back
    return None
