"""Processes that exchange messages."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import ForkServerProcess

from tests.fork_server import context


def start(main: Callable[[str], None], url: str) -> ForkServerProcess:
    process: ForkServerProcess = context.Process(target=main, args=(url,), daemon=True)
    process.start()
    return process


def kill(process: ForkServerProcess) -> None:
    """Kill and reap a process."""
    process.kill()
    process.join()
