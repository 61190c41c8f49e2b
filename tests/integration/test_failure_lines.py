"""A run that has failed is one ERROR line, and a try that has failed is a warning."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import create_engine

from flowengine import Retry, attempt, event_facet, workflow
from flowengine.errors import AuthoringError
from flowengine.evaluator.triggers import Failed, Lost
from flowengine.settings import Settings
from flowengine.testing import Flow
from tests.integration.engines import opened

pytestmark = pytest.mark.usefixtures("lines")
SEALED = "flowengine.payload_codecs:AesGcmCodec"


@event_facet(name="lines.pay", retry=Retry(attempts=2, first_wait=1))
def pay(n: int) -> int:
    if n < 0:
        raise ValueError(f"negative {n}")
    return n


@event_facet(name="lines.expected", log_failures="info")
def expected(n: int) -> int:
    raise LookupError(f"no {n} today")


@workflow(name="lines.order")
def order(n: int) -> int:
    return pay(n)


@workflow(name="lines.tolerant")
def tolerant(n: int) -> int:
    return attempt(lambda: expected(n), catch=lambda error: pay(7))


@workflow(name="lines.caught_in_vain")
def caught_in_vain(n: int) -> int:
    return attempt(lambda: expected(n), catch=lambda error: pay(-1))


@workflow(name="lines.function")
async def function(n: int) -> int:
    await pay(abs(n))
    raise KeyError(f"order {n}")


@event_facet(name="lines.delegate")
def delegate(n: int) -> int:
    return order.call(n)


@workflow(name="lines.parent")
def parent(n: int) -> int:
    return delegate(n)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "flowengine")
    return caplog


def of(lines: pytest.LogCaptureFixture, action: str) -> list[Any]:
    return [each for each in lines.records if getattr(each, "action", "") == action]


def shown(record: logging.LogRecord) -> str:
    return logging.Formatter("%(levelname)s %(message)s").format(record)


def ended(flow: Flow, run: Any) -> None:
    for _ in range(4):
        flow.settle()
        flow.clock.advance(seconds=5)
    assert run.info().is_final


def test_a_run_that_failed_is_one_error_line(
    database_url: str, lines: pytest.LogCaptureFixture
) -> None:
    with Flow(store_url=database_url) as flow:
        run = order.start(-1)
        ended(flow, run)
        flow.watchdog()
    (line,) = of(lines, "run_failed")
    assert shown(line) == (
        f"ERROR run {run.id} of lines.order failed in order.pay: "
        "ValueError: negative -1 (failed 2 of 2 tries)"
    )
    about = (line.run, line.workflow, line.path, line.error_type)
    assert about == (run.id, "lines.order", "order.pay", "ValueError")


def test_each_failed_try_is_one_warning_with_its_traceback(
    database_url: str, lines: pytest.LogCaptureFixture
) -> None:
    with Flow(store_url=database_url) as flow:
        run = order.start(-1)
        ended(flow, run)
    tries = of(lines, "try_failed")
    assert [each.levelname for each in tries] == ["WARNING", "WARNING"]
    assert [each.try_number for each in tries] == [1, 2]
    first = f"order.pay failed: ValueError: negative -1 (try 1 of run {run.id})\n"
    assert shown(tries[0]).startswith(f"WARNING {first}  Traceback")
    assert 'raise ValueError(f"negative {n}")' in shown(tries[0])


def test_a_facet_may_log_its_failed_tries_at_another_level(
    database_url: str, lines: pytest.LogCaptureFixture
) -> None:
    with Flow(store_url=database_url) as flow:
        run = tolerant.start(1)
        ended(flow, run)
        assert run.result() == 7
    assert [each.levelname for each in of(lines, "try_failed")] == ["INFO"]
    assert of(lines, "run_failed") == []
    with pytest.raises(AuthoringError, match="log_failures='never' is none of 'debug', 'info'"):
        event_facet(name="lines.never", log_failures="never")(pay.fn)  # type: ignore[call-overload]


def test_the_level_of_a_facet_is_no_part_of_the_program() -> None:
    assert "log_failures" not in str(tolerant.program())


def test_the_line_of_a_run_has_the_cause_behind_the_error(
    database_url: str, lines: pytest.LogCaptureFixture
) -> None:
    with Flow(store_url=database_url) as flow:
        run = caught_in_vain.start(3)
        ended(flow, run)
    (line,) = of(lines, "run_failed")
    assert "ValueError: negative -1 (failed 2 of 2 tries); it was handling" in shown(line)
    assert line.cause == "LookupError: no 3 today, in caught_in_vain.attempt.expected"


def test_a_durable_function_that_raises_is_a_warning_with_its_traceback(
    database_url: str, lines: pytest.LogCaptureFixture
) -> None:
    with Flow(store_url=database_url) as flow:
        run = function.start(5)
        ended(flow, run)
    (tried,) = of(lines, "try_failed")
    first = f"function.function failed: KeyError: 'order 5' (try 2 of run {run.id})\n"
    assert shown(tried).startswith(f"WARNING {first}  Traceback")
    assert 'raise KeyError(f"order {n}")' in shown(tried)
    assert len(of(lines, "run_failed")) == 1


def test_a_run_that_fails_again_after_a_retry_has_another_line(
    database_url: str, lines: pytest.LogCaptureFixture
) -> None:
    with Flow(store_url=database_url) as flow:
        run = order.start(-1)
        ended(flow, run)
        run.retry()
        ended(flow, run)
    first, second = of(lines, "run_failed")
    assert " failed in " in shown(first)
    assert " failed again, in generation 1, in order.pay" in shown(second)


def test_a_failed_child_run_has_its_line_and_its_parent_names_it(
    database_url: str, lines: pytest.LogCaptureFixture
) -> None:
    with Flow(store_url=database_url) as flow:
        run = parent.start(-1)
        ended(flow, run)
        (child,) = [info.id for info in flow.engine.list(workflow="lines.order")]
    told = {each.run: shown(each) for each in of(lines, "run_failed")}
    assert set(told) == {child, run.id}
    assert f"in child run {child}" in told[run.id]


def test_a_lost_try_and_one_reported_from_outside_are_warnings_without_a_traceback(
    database_url: str, lines: pytest.LogCaptureFixture
) -> None:
    with Flow(store_url=database_url) as flow:
        run = order.start(1)
        worker = flow.worker("w1")
        flow.engine.report(worker.claim(run, "pay"), Lost("the worker (pid 7) died"))
        flow.clock.advance(seconds=5)
        error = {"type": "Timeout", "message": "no activity"}
        flow.engine.report(worker.claim(run, "pay"), Failed(error, retry=False))
    lost, silent = of(lines, "try_failed")
    assert shown(lost).endswith(
        f"order.pay was lost: the worker (pid 7) died (try 1 of run {run.id}, no traceback)"
    )
    assert shown(silent).endswith(
        f"order.pay failed: Timeout: no activity (try 1 of run {run.id}, no traceback)"
    )
    assert {lost.levelname, silent.levelname} == {"WARNING"}


def test_a_commit_that_is_refused_and_repeated_logs_the_end_once(
    database_url: str, lines: pytest.LogCaptureFixture
) -> None:
    with Flow(store_url=database_url) as flow:
        run = order.start(1)
        task = flow.worker("w1").claim(run, "pay")
        with opened(database_url) as other:  # its commit makes the cache of the first one stale
            if database_url == "sqlite://":
                pytest.skip("a database in memory has one engine")
            other.hold(run.id)
        lost = Failed({"type": "Gone", "message": "away"}, retry=False)
        assert flow.engine.report(task, lost)
        assert not flow.engine.report(task, lost), "redelivered"
        assert run.info().state == "FAILED"
    assert len(of(lines, "run_failed")) == 1
    assert len(of(lines, "try_failed")) == 1


@workflow(name="lines.at_once")
def at_once(n: int) -> str:
    return n  # type: ignore[return-value]


def test_a_run_that_fails_as_it_starts_has_its_line_once_its_transaction_is_committed(
    database_url: str, lines: pytest.LogCaptureFixture
) -> None:
    if database_url == "sqlite://":
        pytest.skip("a database in memory has one connection")
    outside = create_engine(database_url)
    with Flow(store_url=database_url):
        with outside.connect() as connection:
            at_once.options(connection=connection).start(1)
            connection.rollback()
        with outside.begin() as connection:
            run = at_once.options(connection=connection).start(2)
            assert of(lines, "run_failed") == []
        assert [each.run for each in of(lines, "run_failed")] == [run.id]
    outside.dispose()


def test_with_encrypted_payloads_no_line_has_the_message_of_an_error(
    database_url: str, lines: pytest.LogCaptureFixture
) -> None:
    settings = Settings(payload_codec=SEALED, payload_keys=f"k={'7f' * 32}")
    with Flow(store_url=database_url, settings=settings) as flow:
        run = function.start(4141)
        failing = order.start(-4242)
        ended(flow, run)
        ended(flow, failing)
        text = "\n".join(map(shown, lines.records))
        assert failing.info().error_text
    assert "4141" not in text
    assert "4242" not in text
    failed = of(lines, "run_failed")
    assert {each.error_type for each in failed} == {"KeyError", "ValueError"}
    assert "KeyError (`flowengine show` prints its message)" in text
    assert text.count('test_failure_lines.py", line ') == 3, (
        "the places of two tries and a function"
    )
