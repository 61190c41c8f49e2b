"""What a worker takes into its hands, what is taken out of them, and how often bells ring."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from flowengine.dispatch.debounce import Debounce
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Report, Succeeded
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.batch import Batch, BatchGuard
from flowengine.worker.batch_sizing import BatchSizing
from flowengine.worker.continuation import Continuation

PATIENCE = 30.0


def task(uuid: str, name: str = "t.quick", **more: object) -> TaskDefinition:
    return TaskDefinition(uuid, name, "", "run", "hash", uuid, **more)  # type: ignore[arg-type]


def report(done: TaskDefinition) -> Report:
    return Report(done, Succeeded({}))


# --- pace ---


def test_a_facet_is_quick_after_some_tries_that_were() -> None:
    pace = BatchSizing(0.002)
    assert not pace.is_quick("f")
    pace.count("f", 0.001)
    assert not pace.is_quick("f"), "one is no evidence"
    pace.count("f", 0.001)
    assert pace.is_quick("f")
    assert pace.quick(["f", "g"]) == ["f"]


def test_after_a_slow_try_few_are_taken_at_once_until_more_were_quick() -> None:
    now = [0.0]
    pace = BatchSizing(0.002, clock=lambda: now[0])
    for _ in range(100):
        pace.count("f", 0.0001)
    assert pace.fitting(["f"], 0.025) > 100
    pace.count("f", 1.0)
    assert not pace.is_quick("f"), "alone, until one was quick again"
    sizes = []
    for _ in range(3):
        pace.count("f", 0.0001)
        assert pace.is_quick("f")
        sizes.append(pace.fitting(["f"], 0.025))
    assert sizes == [3, 6, 9]
    now[0] = 11
    assert pace.fitting(["f"], 0.025) > 100, "forgotten"


def test_a_facet_that_was_slow_does_not_make_the_others_few() -> None:
    pace = BatchSizing(0.002)
    for _ in range(3):
        pace.count("steady", 0.0001)
    for seconds in (1.0, 0.0001):
        pace.count("moody", seconds)
    names = ["steady", "moody"]
    assert pace.quick(names, last="steady") == ["steady"]
    assert pace.quick(names, last="moody") == names, "it is around"
    assert pace.fitting(names, 0.025) == 3


def test_a_facet_that_is_always_slow_is_never_quick() -> None:
    pace = BatchSizing(0.002)
    for _ in range(5):
        pace.count("f", 1.0)
    assert not pace.is_quick("f")


def test_a_facet_that_is_slow_on_average_is_not_quick() -> None:
    pace = BatchSizing(0.002)
    for _ in range(10):
        pace.count("f", 0.005)
    assert not pace.is_quick("f")


def test_of_quick_tries_as_many_are_taken_as_fit_into_the_time() -> None:
    pace = BatchSizing(0.002)
    for name, seconds in (("f", 0.0001), ("g", 0.001)):
        pace.count(name, seconds)
        pace.count(name, seconds)
    assert pace.fitting(["f"], 0.025) == pytest.approx(250, abs=1)
    assert pace.fitting(["f", "g"], 0.025) == pytest.approx(25, abs=1), "the slowest counts"
    assert pace.fitting([], 0.025) == 1


# --- continuation ---


def practised(*names: str) -> BatchSizing:
    pace = BatchSizing(0.002)
    for name in names:
        pace.count(name, 0.0001)
        pace.count(name, 0.0001)
    return pace


def continuation(pace: BatchSizing, lists: tuple[str, ...] = ()) -> Continuation:
    return Continuation(
        WorkerIdentity(), pace, {"t.quick", "t.slow"}, lists, batch=4, seconds=0.025
    )


def test_quick_tasks_are_gone_on_with_in_numbers_and_of_others_one() -> None:
    quick = [task(str(n)) for n in range(3)]
    slow = [task(f"slow {n}", "t.slow") for n in range(3)]
    pace = practised("t.quick")
    assert continuation(pace).choose([*quick, *slow]) == {"0", "1", "2"}
    policy = continuation(pace)
    assert policy.choose(slow) == {"slow 0"}
    assert policy.choose(slow) == set(), "one for all runs of a report"


def test_after_a_slow_try_few_are_gone_on_with_of_all_runs_together() -> None:
    pace = practised("t.quick")
    pace.count("t.quick", 1.0)
    pace.count("t.quick", 0.0001)
    policy = continuation(pace)
    assert policy.choose([task("0"), task("1")]) == {"0", "1"}
    assert policy.choose([task("2"), task("3")]) == {"2"}


def test_what_is_not_ours_is_left_to_others() -> None:
    pace = practised("t.quick", "t.other")
    strange = task("strange", "t.other")
    elsewhere = task("elsewhere", task_list_name="gpu")
    assert continuation(pace, ("default",)).choose([strange, elsewhere]) == set()


def test_a_wide_group_is_for_everybody() -> None:
    wide = [task(str(n), join="row") for n in range(5)]
    assert not continuation(practised("t.quick")).choose(wide)


def test_what_has_lost_a_worker_or_must_not_run_twice_is_taken_alone() -> None:
    pace = practised("t.quick")
    lost, once = task("lost", losses=1), task("once", runs_once=True)
    assert continuation(pace).choose([lost, once]) == {"lost"}
    assert continuation(pace).choose([once, task("quick")]) == {"quick"}


# --- hands ---


def test_what_lies_around_a_slow_task_is_taken_out_of_the_hand() -> None:
    relieved = threading.Event()
    taken: list[str] = []

    def relieve(hand: Batch) -> None:
        taken.extend(waiting.uuid for waiting in hand.take_waiting())
        taken.extend(done.task.uuid for done in hand.take_done())
        relieved.set()

    guard = BatchGuard(0.01, relieve)
    hand = Batch([task("done"), task("slow"), task("behind")])
    with guard.over(hand):
        first = hand.next()
        assert first is not None
        hand.finish(report(first))
        assert hand.next() is not None
        assert relieved.wait(PATIENCE)
    assert sorted(taken) == ["behind", "done"]
    assert hand.next() is None


def test_many_that_take_a_while_each_do_not_keep_those_behind_them() -> None:
    """None of them is slow by itself, but the last would wait for all."""

    def relieve(hand: Batch) -> None:
        hand.take_done()
        hand.take_waiting()

    guard = BatchGuard(0.01, relieve)
    hand = Batch([task(str(number)) for number in range(1_000)])
    run = 0
    with guard.over(hand):
        while (one := hand.next()) is not None:
            time.sleep(0.005)
            hand.finish(report(one))
            run += 1
    assert run < 1_000


def test_what_is_put_into_an_empty_hand_has_not_been_lying_there() -> None:
    hand = Batch([task("long")])
    first = hand.next()
    assert first is not None
    time.sleep(0.4)
    hand.finish(report(first))
    assert not hand.is_stuck(0.3)
    hand.take_done()
    time.sleep(0.4)
    hand.add([task("next")])
    assert not hand.is_stuck(0.3)


def test_a_slow_task_that_is_alone_in_its_hand_is_left_alone() -> None:
    hand = Batch([task("slow")])
    hand.next()
    time.sleep(0.01)
    assert not hand.is_stuck(0.001)


# --- bells ---


class Rung:
    def __init__(self) -> None:
        self.calls: list[dict[str, int]] = []
        self.again = threading.Event()

    def __call__(self, due: Mapping[str, int]) -> None:
        self.calls.append(dict(due))
        if len(self.calls) > 1:
            self.again.set()


def test_the_first_bell_rings_at_once_and_those_behind_it_together() -> None:
    rung = Rung()
    notify = Debounce(rung, pause=0.5)
    for _ in range(20):
        notify({"default": 1})
    assert rung.calls == [{"default": 1}]
    assert rung.again.wait(PATIENCE)
    assert rung.calls == [{"default": 1}, {"default": 19}]


def test_each_list_has_its_own_bell() -> None:
    rung = Rung()
    notify = Debounce(rung, pause=60)
    notify({"a": 1})
    notify({"b": 2})
    notify({"a": 3, "c": 4})
    assert rung.calls == [{"a": 1}, {"b": 2}, {"c": 4}]
    notify.flush()
    assert rung.calls[-1] == {"a": 3}, "what is kept at the end is rung then"


def test_who_flushes_waits_for_a_bell_that_is_being_rung() -> None:
    """At the end of a process nobody else would ring it."""
    begun, go_on, rung = threading.Event(), threading.Event(), Rung()

    def slowly(due: Mapping[str, int]) -> None:
        if due["default"] > 1:
            begun.set()
            assert go_on.wait(PATIENCE)
        rung(due)

    notify = Debounce(slowly, pause=0.01)
    for _ in range(3):
        notify({"default": 1})
    assert begun.wait(PATIENCE)
    threading.Timer(0.05, go_on.set).start()
    notify.flush()
    assert rung.calls == [{"default": 1}, {"default": 2}]


def test_without_a_pause_every_bell_rings() -> None:
    rung = Rung()
    notify = Debounce(rung, pause=0)
    for _ in range(5):
        notify({"default": 1})
    assert rung.calls == [{"default": 1}] * 5
