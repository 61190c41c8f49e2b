"""The error of a try, as it is stored and logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flowengine.errors import DoesNotFit, ModelOverloaded, ModelRateLimited, RetryAfter
from flowengine.settings import Settings
from flowengine.worker.try_errors import ends_thread, failed
from tests.unit.worker.claims import task


class GreenletExit(BaseException):
    """Like that of greenlet, which need not be installed."""


class Stopping(SystemExit):
    pass


class Interrupted(Exception):
    """An error of a user, whose name means nothing."""


Interrupted.__name__ = "KeyboardInterrupt"


def stored(problem: BaseException, most: int = 1000, **settings: Any) -> dict[str, Any]:
    engine: Any = SimpleNamespace(settings=Settings(max_error_length=most, **settings))
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


def logged(caplog: pytest.LogCaptureFixture, problem: BaseException, **settings: Any) -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO, "flowengine"):
        stored(problem, **settings)
    (record,) = caplog.records
    assert (record.levelname, vars(record)["action"]) == ("WARNING", "try_failed")
    return logging.Formatter("%(message)s").format(record)


def test_a_failed_try_is_one_warning_with_its_step_and_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = logged(caplog, raised(ValueError("bad")))
    assert text.startswith("flow.a failed: ValueError: bad (try 1 of run run)\n")
    assert "in raised" in text
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


def chained(cause: BaseException) -> BaseException:
    problem = KeyError("order 7")
    problem.__cause__ = cause
    return raised(problem)


@pytest.mark.parametrize("wrap", [raised, chained, lambda e: ExceptionGroup("many", [e])])
def test_the_log_of_a_failed_try_has_no_values_of_the_run(
    caplog: pytest.LogCaptureFixture, wrap: Callable[[BaseException], BaseException]
) -> None:
    problem = DoesNotFit("shop.pay", ["'card' should be int, was 'hunter2' (str)"])
    text = logged(caplog, wrap(problem))
    assert "hunter2" not in text


def test_with_encrypted_payloads_the_log_of_a_failed_try_has_its_places_and_no_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    codec = "flowengine.payload_codecs:AesGcmCodec"
    text = logged(caplog, raised(ValueError("hunter2")), payload_codec=codec)
    assert "flow.a failed: ValueError (`flowengine show` prints its message)" in text
    assert "in raised" in text
    assert "hunter2" not in text
    compressed = "flowengine.payload_codecs:ZlibCodec"
    assert "hunter2" in logged(caplog, raised(ValueError("hunter2")), payload_codec=compressed)
