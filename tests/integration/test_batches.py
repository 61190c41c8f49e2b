"""The batch guard takes waiting tasks out of a batch; wake-ups are debounced."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from flowengine.dispatch.debounce import Debounce
from flowengine.evaluator.triggers import Succeeded
from flowengine.worker.batch import Batch, BatchGuard
from tests.unit.worker.claims import table, task

TIMEOUT = 30.0

# --- the guard ---


def test_the_tasks_around_a_slow_one_are_taken_out_of_its_batch() -> None:
    emptied = threading.Event()
    taken: list[str] = []

    def empty(batch: Batch) -> None:
        taken.extend(entry.task.uuid for entry in batch.take_unstarted())
        taken.extend(entry.task.uuid for entry in batch.take_finished())
        emptied.set()

    claimed, guard = table(time.monotonic), BatchGuard(0.01, empty)
    done, slow, behind = claimed.claim([task(), task(), task()])
    batch = Batch(claimed, [done, slow, behind])
    # Before its time begins, which may be over at once on a busy machine.
    assert batch.next() is done
    claimed.start(done)
    batch.finish(done, Succeeded({}))
    assert batch.next() is slow
    with guard.over(batch):
        assert emptied.wait(TIMEOUT)
    assert sorted(taken) == sorted([behind.task.uuid, done.task.uuid])
    assert batch.next() is None


def test_a_guard_that_fails_once_names_the_tasks_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    emptied = threading.Event()
    problems = [ValueError("once")]

    def empty(batch: Batch) -> None:
        if problems:
            raise problems.pop()
        batch.take_unstarted()
        emptied.set()

    claimed, guard = table(time.monotonic), BatchGuard(0.01, empty)
    (entry,) = claimed.claim([task()])
    batch = Batch(claimed, [entry])
    with guard.over(batch):
        assert emptied.wait(TIMEOUT)
    assert f"1 tasks behind a slow one, among them {entry.task.step_path} of run" in caplog.text


def test_a_guard_ends_at_once_however_long_it_waits_between_two_looks() -> None:
    looked = threading.Event()

    class Watched(Batch):
        def is_slow(self, max_wait: float) -> bool:
            looked.set()
            return False

    before = set(threading.enumerate())
    guard = BatchGuard(600.0, lambda _: None)
    with guard.over(Watched(table(time.monotonic), [])):
        assert looked.wait(TIMEOUT)
    (thread,) = set(threading.enumerate()) - before
    guard.end()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


# --- debounce ---


class WakeupRecorder:
    def __init__(self) -> None:
        self.calls: list[dict[str, int]] = []
        self.again = threading.Event()

    def __call__(self, due: Mapping[str, int]) -> None:
        self.calls.append(dict(due))
        if len(self.calls) > 1:
            self.again.set()


def test_the_first_wakeup_is_sent_at_once_and_the_next_ones_together() -> None:
    sent = WakeupRecorder()
    notify = Debounce(sent, pause=0.5)
    for _ in range(20):
        notify({"default": 1})
    assert sent.calls == [{"default": 1}]
    assert sent.again.wait(TIMEOUT)
    assert sent.calls == [{"default": 1}, {"default": 19}]


def test_each_task_list_is_debounced_by_itself() -> None:
    sent = WakeupRecorder()
    notify = Debounce(sent, pause=60)
    notify({"a": 1})
    notify({"b": 2})
    notify({"a": 3, "c": 4})
    assert sent.calls == [{"a": 1}, {"b": 2}, {"c": 4}]
    notify.flush()
    assert sent.calls[-1] == {"a": 3}, "a wake-up that is kept is sent by the flush"


def test_a_flush_waits_for_a_wakeup_that_is_being_sent() -> None:
    """At the end of a process nobody else would send it."""
    begun, go_on, sent = threading.Event(), threading.Event(), WakeupRecorder()

    def slowly(due: Mapping[str, int]) -> None:
        if due["default"] > 1:
            begun.set()
            assert go_on.wait(TIMEOUT)
        sent(due)

    notify = Debounce(slowly, pause=60)
    for _ in range(3):
        notify({"default": 1})
    threading.Thread(target=notify.flush).start()
    assert begun.wait(TIMEOUT)
    threading.Timer(0.05, go_on.set).start()
    notify.flush()
    assert sent.calls == [{"default": 1}, {"default": 2}]


def test_without_a_pause_every_wakeup_is_sent() -> None:
    sent = WakeupRecorder()
    notify = Debounce(sent, pause=0)
    for _ in range(5):
        notify({"default": 1})
    assert sent.calls == [{"default": 1}] * 5
