"""Processes that begin at once: their modules were imported before they were forked."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess

_CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["tests.acceptance.messaging.consumer", "tests.acceptance.messaging.caller"]
)


def begin(main: Callable[[str], None], url: str) -> ForkServerProcess:
    process = _CONTEXT.Process(target=main, args=(url,), daemon=True)
    process.start()
    return process


def end(process: ForkServerProcess) -> None:
    """Kill it, or bury it when it is dead."""
    process.kill()
    process.join()
