"""Waiting for the end of a run: how often it is checked, and for how long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flowengine.engine import after_commit
from flowengine.engine.after_commit import RunCompletions


@pytest.fixture
def completions() -> RunCompletions:
    """Of a database that cannot notify."""
    store: Any = SimpleNamespace(listen=lambda *_: None)
    return RunCompletions(store)


def slow_check(seconds: float, checks: list[float]) -> Callable[[], bool]:
    def check() -> bool:
        checks.append(time.monotonic())
        time.sleep(seconds)
        return False

    return check


def test_a_check_that_outlasts_the_timeout_is_the_last(completions: RunCompletions) -> None:
    checks: list[float] = []
    completions.wait("run", slow_check(0.02, checks), timeout=0.01)
    assert len(checks) == 1
    asyncio.run(completions.await_end("run", slow_check(0.02, checks), timeout=0.01))
    assert len(checks) == 2


class MovedClock:
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def event(self) -> SimpleNamespace:
        return SimpleNamespace(set=lambda: None, clear=lambda: None, wait=self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_a_run_is_checked_once_more_when_the_time_is_over(
    completions: RunCompletions, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, checks = MovedClock(), []
    monkeypatch.setattr(after_commit, "time", clock)
    monkeypatch.setattr(after_commit, "threading", SimpleNamespace(Event=clock.event))
    completions.wait("run", lambda: checks.append(clock.now) is not None, timeout=0.1)
    assert checks == [0.0, 0.02, 0.05, 0.095, 0.1]


def test_a_run_that_is_over_is_checked_once(completions: RunCompletions) -> None:
    checks: list[float] = []

    def is_over() -> bool:
        checks.append(0)
        return True

    completions.wait("run", is_over, timeout=0)
    assert len(checks) == 1
