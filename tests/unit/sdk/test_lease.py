"""Heartbeats for code that sends none."""

from __future__ import annotations

import threading
import time

from flowengine.sdk.lease import kept_alive
from flowengine.worker.cancel_token import CancelToken
from flowengine.worker.step_context import StepContext


def step(beats: list[float], *, holds: bool = True) -> StepContext:
    def beat(progress: str | None) -> bool:
        beats.append(time.monotonic())
        return holds

    return StepContext("r", "a.b", "f", 1, "s", beat, lambda: CancelToken("a.b"))


def until_ended() -> None:
    ends = time.monotonic() + 20
    while any(thread.name == "flowengine-lease" for thread in threading.enumerate()):
        assert time.monotonic() < ends
        time.sleep(0.001)


def test_heartbeats_are_sent_until_the_code_ends() -> None:
    beats: list[float] = []
    with kept_alive(step(beats), 0.001, None):
        ends = time.monotonic() + 20
        while len(beats) < 3:
            assert time.monotonic() < ends
            time.sleep(0.001)
    number = len(beats)
    until_ended()
    assert len(beats) == number


def test_heartbeats_end_with_the_timeout_of_the_facet() -> None:
    beats: list[float] = []
    with kept_alive(step(beats), 0.001, 0.0):
        until_ended()
    assert beats == []


def test_heartbeats_end_with_the_lease() -> None:
    beats: list[float] = []
    with kept_alive(step(beats, holds=False), 0.001, None):
        until_ended()
    assert len(beats) == 1
