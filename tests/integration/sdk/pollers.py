"""Pollers in threads of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from flowengine.sdk import AgentPoller, RunnerService
from flowengine.store.servers import ServerDefinition

P = TypeVar("P", AgentPoller, RunnerService)

WAIT = 20.0  #: seconds after which something that should happen does not


@contextmanager
def started(poller: P) -> Iterator[P]:
    """A poller that runs, stopped at the end."""
    problems: list[BaseException] = []

    def start() -> None:
        try:
            poller.start()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=start)
    thread.start()
    try:
        until(lambda: bool(problems) or state_of(poller) == "running")
        yield poller
    finally:
        poller.stop()
        thread.join(WAIT)
    assert not thread.is_alive()
    assert problems == []


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that other threads bring about."""
    ends = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.005)


def row_of(poller: AgentPoller | RunnerService) -> ServerDefinition | None:
    with poller.engine.database.read() as session:
        rows = session.servers.by_boot_ids([poller._server.boot_id])
        session.servers.load_handled(rows)
    return rows[0] if rows else None


def state_of(poller: AgentPoller | RunnerService) -> str:
    row = row_of(poller)
    return row.state if row else ""
