"""Workflows whose steps must not run before their time, nor on another task list's workers."""

from __future__ import annotations

import os
from pathlib import Path

from flowengine import Retry, event_facet, workflow


@event_facet(name="guarded.later", task_list="guarded", retry=Retry(attempts=2, first_wait=3600))
def later(n: int) -> int:
    _trace("later")
    raise ConnectionError("not before an hour has passed")


@event_facet(name="guarded.elsewhere", task_list="elsewhere")
def elsewhere(n: int) -> int:
    _trace("elsewhere")
    return n


@event_facet(name="guarded.here", task_list="guarded")
def here(n: int) -> int:
    _trace("here")
    return n + 1


@workflow(name="guarded.waits")
def waits(n: int) -> int:
    return later(n)


@workflow(name="guarded.is_elsewhere")
def is_elsewhere(n: int) -> int:
    return elsewhere(n)


@workflow(name="guarded.is_here")
def is_here(n: int) -> int:
    return here(here(n))


def _trace(name: str) -> None:
    with (Path(os.environ["TRACES"]) / f"ran-{name}").open("a") as file:
        file.write("x")
