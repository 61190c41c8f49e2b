"""Async facets for worker processes."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

from flowengine import event_facet, foreach, workflow

log = logging.getLogger("shop.orders")
begun: dict[str, int] = {}  #: tries of a name that have begun in this process


@event_facet(name="coroutines.gather", max_losses=0)
async def gather(n: int, name: str, number: int) -> int:
    """End when `number` tries of this name have begun in one process, or a file allows it."""
    directory = Path(os.environ["TRACES"])
    begun[name] = begun.get(name, 0) + 1
    log.info("number %d", n)
    (directory / f"begun-{name}-{os.getpid()}").touch()
    while begun[name] < number and not (directory / f"go-{name}").exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@event_facet(name="coroutines.hang", timeout=1.0, max_losses=0)
async def hang(n: int) -> int:
    await asyncio.sleep(3600)
    return n


@event_facet(name="coroutines.hold_loop", timeout=1.0, max_losses=0)
async def hold_loop(n: int) -> int:
    time.sleep(3600)
    return n


@workflow(name="coroutines.gathering")
def gathering(name: str, numbers: list[int], number: int) -> list[int]:
    return foreach(numbers, lambda n: gather(n, name, number))


@workflow(name="coroutines.hanging")
def hanging(n: int) -> int:
    return hang(n)


@workflow(name="coroutines.holding")
def holding(n: int) -> int:
    return hold_loop(n)
