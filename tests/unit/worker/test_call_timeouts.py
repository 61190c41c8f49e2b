"""The timeouts of calls in place: a report that fails is logged with its step and repeated."""

from __future__ import annotations

import threading

import pytest

from flowengine.worker import call_timeouts
from flowengine.worker.call_timeouts import CallTimeouts


def test_a_timeout_that_cannot_be_reported_names_its_step_and_is_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(call_timeouts, "_AGAIN", 0.001)
    problems, reported = [OSError("away")], threading.Event()

    def expire() -> None:
        if problems:
            raise problems.pop()
        reported.set()

    with CallTimeouts().over(0.001, expire, "a1b2", "order.pay"):
        assert reported.wait(60)
    (line,) = caplog.records
    assert "the timeout of order.pay of run a1b2" in line.getMessage()
    assert "away; it is reported again" in line.getMessage()
    assert (line.__dict__["action"], line.__dict__["run"]) == ("report_failed", "a1b2")
