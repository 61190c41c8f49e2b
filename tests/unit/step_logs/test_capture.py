"""Output of the code of a step goes to the log of its try, and nothing else does."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from flowengine.log_context import logged_step
from flowengine.step_logs.capture import add_lines, capture
from flowengine.step_logs.chunks import TryKey
from flowengine.step_logs.lines import lines_of
from flowengine.step_logs.redaction import Redactor
from flowengine.step_logs.spool import LogSpool
from flowengine.step_logs.threads import step_of_lines
from flowengine.step_logs.try_log import TryLog
from flowengine.worker.execution import Attempt


class Step:
    """A step that is current until its test ends."""

    run_id = path = facet = "x"
    try_number = 1

    def __init__(self) -> None:
        self.spool = LogSpool(None)
        self._log = TryLog(self.spool, TryKey("r" * 32, "t" * 32, 1), Redactor(), 1 << 20)

    def log(self) -> TryLog:
        return self._log

    def lines(self) -> list[tuple[int, str]]:
        self._log.end()
        chunks = self.spool.stored_form(self._log.take())
        return [(line.number, line.text) for c in chunks for line in lines_of(c.body, c.first)]


@pytest.fixture
def step() -> Iterator[Step]:
    step = Step()
    token = logged_step.set(step)
    yield step
    logged_step.reset(token)


def test_records_of_flowengine_are_no_lines_whatever_handler_writes_them(
    step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    capture()
    own = logging.getLogger("flowengine.test_of_capture")
    handler = logging.StreamHandler(sys.stderr)  # a captured stream
    own.addHandler(handler)
    try:
        own.error("of the engine")
        print("of the step", file=sys.stderr)
    finally:
        own.removeHandler(handler)
    assert "of the engine" in capsys.readouterr().err
    assert [text for _, text in step.lines()] == ["of the step"]


def test_a_record_whose_arguments_do_not_fit_its_text_is_kept(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    capture()
    logging.getLogger("tests.of_capture").warning("%d rows", "many")
    assert [text for _, text in step.lines()] == ["%d rows ('many',)"]


def test_a_finalizer_that_prints_while_a_line_is_added_gives_no_number_twice(step: Step) -> None:
    capture()

    class Loud(Redactor):
        def redacted(self, text: str) -> str:
            print("of a finalizer")
            return text

    step.log()._redactor = Loud()
    for number in range(3):
        add_lines(step.log(), "stdout", f"{number}\n")
    assert step.lines() == [(1, "0"), (2, "1"), (3, "2")]


def test_an_error_of_the_log_reaches_no_code_of_the_step(
    step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    capture()

    def fail(*_: Any) -> None:
        raise ValueError("a defect of the log")

    step.log().write = step.log().record = fail  # type: ignore[method-assign]
    print("goes on")
    logging.getLogger("shop").warning("goes on")
    add_lines(step.log(), "stdout", "goes on\n")
    assert "goes on" in capsys.readouterr().out


def test_a_child_that_is_forked_while_a_log_is_opened_can_print(step: Step) -> None:
    is_opening, go_on = threading.Event(), threading.Event()

    def open_slowly(_: Any) -> TryLog:
        is_opening.set()
        go_on.wait(30)
        return step.log()

    def attempt(open_log: Any) -> Attempt:
        made = Attempt.__new__(Attempt)
        made._open_log, made._logs, made._task = open_log, {}, cast("Any", None)
        return made

    other = threading.Thread(target=attempt(open_slowly)._log)
    other.start()
    is_opening.wait(30)
    child = os.fork()
    if child == 0:
        attempt(lambda _: step.log())._log()
        os._exit(7)
    go_on.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_forked_child_can_read_a_secret_while_its_parent_adds_a_line(step: Step) -> None:
    with step.log()._lock:
        child = os.fork()
        if child == 0:
            thread = threading.Thread(target=step.log().add_secrets, args=(["secret"],))
            thread.start()
            thread.join(10)
            os._exit(8 if thread.is_alive() else 7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_lines_of_threads_that_a_step_starts_are_its_own(step: Step) -> None:
    capture()

    def speak() -> None:
        print("in a thread")
        inner = threading.Thread(target=print, args=("in its thread",))
        inner.start()
        inner.join()

    thread = threading.Thread(target=speak)
    thread.start()
    thread.join()
    assert "run" not in vars(thread)
    assert [text for _, text in step.lines()] == ["in a thread", "in its thread"]


def test_a_call_in_a_pool_of_threads_belongs_to_the_step_that_submits_it() -> None:
    capture()
    with ThreadPoolExecutor(1) as pool:
        for number in range(3):  # all are served by the thread that the first one has started
            step = Step()
            token = logged_step.set(step)
            assert list(pool.map(print, [f"of {number}"])) == [None]
            logged_step.reset(token)
            pool.submit(print, "of nobody").result()
            assert [text for _, text in step.lines()] == [f"of {number}"]


def test_a_thread_that_goes_on_belongs_to_no_step_when_its_try_has_ended() -> None:
    capture()
    go_on, seen = threading.Event(), list[Any]()

    def serve() -> None:
        seen.append(step_of_lines() is not None)
        go_on.wait(30)
        seen.append(step_of_lines())

    step = Step()
    token = logged_step.set(step)
    thread = threading.Thread(target=serve)
    thread.start()
    logged_step.reset(token)
    while not seen:
        time.sleep(0.001)
    del step, token
    go_on.set()
    thread.join()
    assert seen == [True, None]
