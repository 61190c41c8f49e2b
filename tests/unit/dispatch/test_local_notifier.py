"""Which wake-ups of a busy process wait for a claim that a thread has promised."""

from __future__ import annotations

import pytest
from celery import Celery

from flowengine.dispatch import ClaimPromise, LocalNotifier, ProcessLoad


class Busy(ProcessLoad):
    def __init__(self) -> None:
        super().__init__()
        self.busy = True

    @property
    def is_busy(self) -> bool:
        return self.busy


class Notifier(LocalNotifier):
    def __init__(self) -> None:
        self.load = Busy()
        app = Celery("threads", broker="memory://", set_as_current=False)
        super().__init__(app, threads=8, queue="threads", load=self.load)
        self.sent: list[tuple[str, int]] = []

    def _send(self, task_list: str, wake: int, *hops: int) -> None:
        self.sent.append((task_list, wake))


@pytest.fixture
def notifier() -> Notifier:
    return Notifier()


def working(notifier: Notifier) -> ClaimPromise:
    """A thread that works on quick tasks."""
    promise = notifier.promise("etl")
    promise.claim()
    promise.claimed(are_quick=True)
    return promise


def test_a_wake_up_waits_for_the_claim_that_a_busy_thread_has_promised(notifier: Notifier) -> None:
    promise = working(notifier)
    notifier.notify({"etl": 2, "mail": 1})
    notifier.notify({"etl": 1})
    assert notifier.sent == [("mail", 1)]
    assert not promise.end()
    assert promise.claim() == 3
    assert promise.end()
    notifier.notify({"etl": 1})
    assert notifier.sent == [("mail", 1), ("etl", 1)]


def test_a_wake_up_that_no_thread_has_received_yet_counts_as_a_promise(notifier: Notifier) -> None:
    working(notifier).withdraw()
    notifier.notify({"etl": 1})
    notifier.notify({"etl": 4})
    assert notifier.sent == [("etl", 1)]
    notifier.consumed("etl")
    assert notifier.promise("etl").claim() == 4


@pytest.mark.parametrize("reason", ["idle", "slow", "unknown"])
def test_a_wake_up_is_sent_at_once(notifier: Notifier, reason: str) -> None:
    """Unless the process is busy with quick tasks."""
    notifier.load.busy = reason != "idle"
    promise = notifier.promise("etl")
    promise.claim()
    if reason != "unknown":
        promise.claimed(are_quick=reason != "slow")
    notifier.notify({"etl": 2})
    assert notifier.sent == [("etl", 2)]


def test_a_withdrawn_promise_sends_the_wake_ups_unless_another_one_stands(
    notifier: Notifier,
) -> None:
    first, second = working(notifier), working(notifier)
    notifier.notify({"etl": 2})
    first.withdraw()
    first.withdraw()
    assert notifier.sent == []
    second.withdraw()
    assert notifier.sent == [("etl", 2)]


def test_a_thread_that_leaves_tasks_to_another_one_makes_it_claim_again(notifier: Notifier) -> None:
    first, second = working(notifier), working(notifier)
    assert first.leave_to_others(is_more=True)
    assert not second.leave_to_others(is_more=True)  # it is the last
    assert not second.end()
    assert second.claim() == 2  # it wakes one more if it leaves tasks
    assert second.end()


def test_a_forked_child_has_no_promises(notifier: Notifier) -> None:
    working(notifier)
    notifier.notify({"etl": 2})
    notifier.forked()
    notifier.notify({"etl": 3})
    assert notifier.sent == [("etl", 3)]


def test_a_process_is_busy_while_it_uses_most_of_a_processor() -> None:
    clock, used = [0.0], [0.0]
    load = ProcessLoad(lambda: clock[0], lambda: used[0])
    seen = []
    for now, seconds in ((0.01, 0.01), (0.1, 0.09), (0.11, 0.09), (0.2, 0.1), (0.3, 0.12)):
        clock[0], used[0] = now, seconds
        seen.append(load.is_busy)
    # Measured anew after 20 ms; one sample below the limit may be a disk that halts.
    assert seen == [False, True, True, True, False]


def test_a_process_that_waits_half_of_the_time_has_work_for_more_threads() -> None:
    clock, used = [0.0], [0.0]
    load = ProcessLoad(lambda: clock[0], lambda: used[0])
    for now in range(1, 9):
        clock[0], used[0] = now / 10, now / 20
        assert not load.is_busy
