"""The bounds of sleeps and timeouts: constants are refused early, computed values are limited."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from flowengine import sleep, wait_for, workflow
from flowengine.afl import compile_text
from flowengine.errors import AuthoringError, InvalidProgram
from flowengine.testing import Flow

NAN, INFINITY = float("nan"), float("inf")
CONSTANT: list[Any] = []


@workflow(name="times.naps")
def naps(seconds: float) -> str:
    return wait_for("word", str, after=sleep(seconds))


@workflow(name="times.counts")
def counts(seconds: int) -> str:
    return wait_for("word", str, after=sleep(seconds))


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


@workflow(name="times.wrong_sleep")
def wrong_sleep() -> None:
    sleep(CONSTANT[-1])


@workflow(name="times.wrong_timeout")
def wrong_timeout() -> str:
    return wait_for("word", str, timeout=CONSTANT[-1])


@pytest.mark.parametrize("duration", [-5, timedelta(seconds=-1), "x", 1e30, NAN, INFINITY, True])
def test_a_constant_sleep_out_of_bounds_is_refused_with_the_workflow(duration: Any) -> None:
    CONSTANT.append(duration)
    with Flow() as flow, pytest.raises(AuthoringError, match=r"from 0 to 3,153,600,000 \(a hun"):
        flow.start(wrong_sleep)


@pytest.mark.parametrize("timeout", [0, -1, timedelta(0), "x", 1e30, NAN, 10**40, False])
def test_a_constant_timeout_out_of_bounds_is_refused_with_the_workflow(timeout: Any) -> None:
    CONSTANT.append(timeout)
    with Flow() as flow, pytest.raises(AuthoringError, match="above 0, and at most 3,153,600,000"):
        flow.start(wrong_timeout)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("sleep(seconds = -5)", "a sleep is a number of seconds from 0 to 3,153,600,000"),
        ("sleep(seconds = 9999999999)", "a sleep is a number of seconds from 0"),
        ('wait_for(name = "a", timeout = 0)', "above 0, and at most 3,153,600,000"),
        ('wait_for(name = "a", timeout = -1)', "above 0"),
        ('wait_for(name = "a", timeout = "x")', "above 0.*not 'x'"),
    ],
)
def test_a_constant_time_of_afl_text_out_of_bounds_is_refused(call: str, says: str) -> None:
    text = "namespace n { workflow W() => (x: String) andThen { s = flowengine.%s } }"
    with pytest.raises(InvalidProgram, match=says):
        compile_text(text % call)


def test_a_computed_sleep_below_zero_does_not_wait(flow: Flow) -> None:
    run = flow.start(naps, -5.0)
    assert flow.engine.send(run.id, "word", "now") is True
    assert run.result(timeout=0) == "now"


@pytest.mark.parametrize(("sleeper", "seconds"), [(naps, 1e308), (counts, 10**18)])
def test_a_computed_sleep_ends_in_the_year_9999(flow: Flow, sleeper: Any, seconds: Any) -> None:
    run = flow.start(sleeper, seconds)
    (timer,) = [timer for entry in run.history() for timer in entry.timers]
    assert timer.due == 253402214400000
    assert run.state == "RUNNING"


def test_a_body_outside_a_run_does_not_wait_for_a_time_below_zero() -> None:
    assert sleep(-5).year > 2001
