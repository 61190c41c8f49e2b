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
    assert "the timeout of a call in place of order.pay of run a1b2" in line.getMessage()
    assert "away; it is reported again" in line.getMessage()
    assert (line.__dict__["action"], line.__dict__["run"]) == ("report_failed", "a1b2")


def test_a_slow_report_does_not_hold_up_other_calls() -> None:
    timeouts, reporting, reported = CallTimeouts(), threading.Event(), threading.Event()

    def expire() -> None:
        reporting.set()
        assert reported.wait(30)

    with timeouts.over(0.001, expire, "r", "p") as slow:
        assert reporting.wait(30)
        with timeouts.over(30, lambda: None, "r", "p") as other:
            pass  # it begins and ends while the other is reported
        assert not other.has_expired
        reported.set()
    assert slow.has_expired


def test_a_shorter_timeout_behind_a_longer_one_is_over_first() -> None:
    timeouts, expired = CallTimeouts(), threading.Event()
    with timeouts.over(30, lambda: None, "r", "p"), timeouts.over(0.001, expired.set, "r", "p"):
        assert expired.wait(10)


def test_a_call_after_all_others_have_left_is_looked_after() -> None:
    timeouts, expired = CallTimeouts(), threading.Event()
    with timeouts.over(0.05, lambda: None, "r", "p"):
        pass
    with timeouts.over(0.001, expired.set, "r", "p"):
        assert expired.wait(10)


def test_a_call_whose_thread_cannot_start_is_not_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    timeouts, expired = CallTimeouts(), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError), timeouts.over(0, lambda: expired.append("it"), "r", "p"):
            pass
    done = threading.Event()
    with timeouts.over(0.001, done.set, "r", "p"):
        assert done.wait(10)
    assert expired == []
