"""The error of a try, as it is stored and logged."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from flowengine.errors import ModelOverloaded, ModelRateLimited, RetryAfter
from flowengine.worker.try_errors import ends_thread, failed
from tests.unit.worker.claims import task


class GreenletExit(BaseException):
    """Like that of greenlet, which need not be installed."""


class Stopping(SystemExit):
    pass


class Interrupted(Exception):
    """An error of a user, whose name means nothing."""


Interrupted.__name__ = "KeyboardInterrupt"


def stored(problem: BaseException, most: int = 1000) -> dict[str, Any]:
    engine: Any = SimpleNamespace(settings=SimpleNamespace(max_error_length=most))
    return dict(failed(engine, task(step_path="flow.a"), problem, retry=True).error)


def raised(problem: BaseException) -> BaseException:
    try:
        raise problem
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "problem",
    [
        *(SystemExit(1), KeyboardInterrupt(), GeneratorExit(), GreenletExit(), Stopping()),
        BaseExceptionGroup("many", [ValueError(), BaseExceptionGroup("more", [SystemExit()])]),
    ],
)
def test_an_exception_that_asks_the_process_to_end_does(problem: BaseException) -> None:
    assert ends_thread(problem)


@pytest.mark.parametrize(
    "problem",
    [
        *(ValueError(), asyncio.CancelledError(), Interrupted()),
        BaseExceptionGroup("many", [ValueError(), asyncio.CancelledError()]),
    ],
)
def test_other_exceptions_are_errors_of_the_facet(problem: BaseException) -> None:
    assert not ends_thread(problem)


def test_an_error_has_the_names_of_its_bases_without_the_roots() -> None:
    error = stored(raised(FileNotFoundError("no such order")))
    assert (error["type"], error["message"]) == ("FileNotFoundError", "no such order")
    assert error["bases"] == ["OSError", "Exception"]
    assert error["traceback"].endswith("FileNotFoundError: no such order\n")
    assert "retry_after" not in error


def test_an_error_without_a_message_has_the_name_of_its_class() -> None:
    assert stored(ValueError())["message"] == "ValueError"


def test_an_error_whose_text_cannot_be_made_is_stored() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert stored(Broken())["message"] == "(its text could not be made: ZeroDivisionError)"


def test_a_long_error_keeps_the_beginning_of_its_message_and_the_end_of_its_traceback() -> None:
    error = stored(raised(ValueError("b" + 500 * "x" + "e")), most=60)
    assert len(error["message"]) == len(error["traceback"]) == 60
    assert error["message"].startswith("bx")
    assert error["traceback"].endswith("xe\n")


@pytest.mark.parametrize(
    ("problem", "seconds"),
    [
        (RetryAfter(7), 7),
        (RetryAfter(0), 0),
        (ModelRateLimited("m", "slow", retry_after=3), 3),
        (ModelOverloaded("m", "full", retry_after=4), 4),
    ],
)
def test_the_time_that_an_error_demands_is_stored(problem: Exception, seconds: float) -> None:
    assert stored(problem)["retry_after"] == seconds


def test_a_provider_that_names_no_time_demands_none() -> None:
    assert "retry_after" not in stored(ModelRateLimited("m", "slow"))


def test_the_frames_of_this_package_are_cut_off_the_beginning() -> None:
    call = {"__name__": "flowengine.worker.calls"}
    exec("def call(facet):\n    return facet()", call)

    def facet() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad") as caught:
        call["call"](facet)  # type: ignore[operator]
    of_test = caught.value.__traceback__
    assert of_test is not None
    shown = stored(caught.value.with_traceback(of_test.tb_next))["traceback"]
    assert "in facet" in shown
    assert "in call" not in shown


def test_a_failed_try_is_logged_once_with_its_step(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flowengine"):
        stored(ValueError("bad"))
    (record,) = caplog.records
    assert record.getMessage() == "flow.a failed: ValueError: bad"
    assert vars(record)["action"] == "try_failed"
