"""The author's line at which a coroutine waits."""

from __future__ import annotations

import asyncio
import os
import sysconfig
from typing import Any

from flowengine.authoring.locations import is_internal
from flowengine.program.nodes import Location

_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep


def waiting_line(coro: Any) -> Location | None:
    """Return the innermost line of the author's code in a chain of coroutines."""
    line = None
    while coro is not None:
        if isinstance(coro, asyncio.Task):  # it waits for another task
            coro = coro.get_coro()
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "ag_frame", None)
        if frame is not None:
            file = frame.f_code.co_filename
            if not is_internal(file) and not file.startswith(_STANDARD_LIBRARY):
                line = Location(frame.f_lineno, file=file)
        coro = getattr(coro, "cr_await", None) or getattr(coro, "ag_await", None)
    return line
