"""Processes that start fast: the fork server has imported their modules."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess

_CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["tests.acceptance.messaging.consumer", "tests.acceptance.messaging.caller"]
)


def start(main: Callable[[str], None], url: str) -> ForkServerProcess:
    process = _CONTEXT.Process(target=main, args=(url,), daemon=True)
    process.start()
    return process


def kill(process: ForkServerProcess) -> None:
    """Kill and reap a process."""
    process.kill()
    process.join()
