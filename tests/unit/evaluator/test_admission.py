"""The admission of tasks: never more than a key allows, first in first out, no queue starves."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from flowengine.evaluator.admission import (
    MAX_PASSES,
    WaitQueue,
    decide,
    durations,
    queue_id,
    read_keys,
    stated_keys,
    switched,
    write_keys,
)
from flowengine.evaluator.records import RunView
from flowengine.program.event_options import EventOptions, Limit, Rate


def queue(name: str, keys: str, *tasks: str, turn: int = 0, passed: int = 0) -> WaitQueue:
    return WaitQueue(name, tuple(sorted(keys)), turn, deque(tasks), passed=passed)


def admitted(*queues: WaitQueue, **free: int) -> list[str]:
    return [task for task, _, _ in decide(queues, free).admitted]


def test_tasks_of_one_key_are_admitted_in_order_up_to_its_free_slots() -> None:
    found = decide([queue("q", "A", "1", "2", "3")], {"A": 2})
    assert found.admitted == [("1", "q", ["A"]), ("2", "q", ["A"])]
    assert found.blocked == {"q": "A"}


def test_queues_that_share_a_key_are_served_in_turn() -> None:
    long, short = queue("a", "X", "a1", "a2", "a3"), queue("b", "X", "b1", turn=9)
    assert admitted(long, short, X=3) == ["a1", "b1", "a2"]


def test_the_queue_that_was_served_least_recently_comes_first() -> None:
    assert admitted(queue("a", "X", "a1", turn=5), queue("b", "X", "b1", turn=3), X=1) == ["b1"]


def test_a_task_takes_all_its_keys_or_none() -> None:
    found = decide([queue("q", "AB", "1"), queue("r", "A", "2", turn=1)], {"A": 1, "B": 0})
    assert found.admitted == [("2", "r", ["A"])]
    assert found.blocked == {"q": "B"}
    assert found.passed == {"q": 1, "r": 0}


def test_a_full_key_does_not_stop_queues_that_do_not_need_it() -> None:
    assert admitted(queue("q", "AB", "1"), queue("r", "BC", "2"), A=0, B=1, C=1) == ["2"]


def test_a_queue_that_was_passed_over_too_often_reserves_slots_in_order() -> None:
    starving = queue("q", "AB", "1", passed=MAX_PASSES)
    found = decide([starving, queue("r", "A", "2", turn=1)], {"A": 1, "B": 0})
    assert found.admitted == []
    assert found.reserved == [("1", "A")]
    # B has a free slot, but A comes first: two queues never wait for each other's slots.
    assert decide([queue("q", "AB", "1", passed=MAX_PASSES)], {"A": 0, "B": 1}).reserved == []


def test_a_reserved_slot_is_used_when_the_others_are_free() -> None:
    starving = queue("q", "AB", "1", passed=MAX_PASSES + 1)
    starving.reserved = frozenset("A")
    found = decide([starving], {"A": 0, "B": 1})
    assert found.admitted == [("1", "q", ["B"])]
    assert found.passed == {"q": 0}


keys = st.lists(st.sampled_from("ABCD"), min_size=1, max_size=3, unique=True)


@given(st.lists(st.tuples(keys, st.integers(0, 4)), max_size=6), st.data())
def test_no_key_gives_more_slots_than_it_has_and_none_is_left_unused(
    drawn: list[tuple[list[str], int]], data: st.DataObject
) -> None:
    free = {key: data.draw(st.integers(0, 3)) for key in "ABCD"}
    queues = [
        queue(f"q{n}", "".join(needed), *(f"{n}.{i}" for i in range(size)), turn=n)
        for n, (needed, size) in enumerate(drawn)
    ]
    found = decide(queues, free)
    used = Counter(key for _, _, taken in found.admitted for key in taken)
    used.update(key for _, key in found.reserved)
    assert all(used[key] <= free[key] for key in free)
    for one in queues:
        if one.tasks:  # somebody still waits: for a key that is full
            assert free[found.blocked[one.id]] - used[found.blocked[one.id]] <= 0
    order = [task for task, _, _ in found.admitted]
    for one in queues:
        of_queue = [task for task in order if task.startswith(f"{one.id[1:]}.")]
        assert of_queue == sorted(of_queue)


def test_no_queue_starves_although_its_keys_are_never_free_together() -> None:
    """The worst case: others take each key the moment that it is free."""
    both, passed, held = ("AB", "x"), 0, frozenset[str]()
    for turn in range(100):
        freed = "AB"[turn % 2]
        starving = WaitQueue("x", ("A", "B"), 0, deque([both[1]]), held, passed)
        other = queue("o", freed, "other", turn=1)
        free = {"A": 0, "B": 0} | ({} if freed in held else {freed: 1})
        found = decide([starving, other], free)
        if any(task == "x" for task, _, _ in found.admitted):
            assert turn <= 2 * MAX_PASSES + 3
            return
        passed, held = found.passed["x"], held | {key for _, key in found.reserved}
    raise AssertionError("it was never admitted")


# --- keys and durations ---


def test_the_keys_of_a_step_are_made_of_its_arguments() -> None:
    options = EventOptions(limit=(Limit("customer:{c}", 2),), rate=(Rate("mail", 100, per=0.5),))
    keys = stated_keys(options, {"c": "eva"}.__getitem__, RunView("r", "w", "", tenant="acme"), 7)
    assert keys == [("limit:customer:eva", 2, None, 7), ("rate:mail", 100, 500, 7)]
    assert read_keys(write_keys(keys)) == keys
    assert queue_id("acme", keys) != queue_id("", keys)


def test_a_wait_is_divided_into_limit_and_rate() -> None:
    switches = switched(switched(switched([], 100, "limit:a"), 150, "limit:b"), 300, "rate:m")
    assert switches == [[100, "limit"], [300, "rate"]]
    assert durations(120, 350, switches, "rate") == (180, 50)
    assert durations(320, 350, switches, "limit") == (0, 30)
    assert durations(50, 90, switches, "rate") == (40, 0)
    assert durations(50, 90, [], "rate") == (0, 40)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.sampled_from(["limit:a", "rate:b"]))),
    st.integers(0, 100),
    st.integers(0, 50),
)
def test_the_parts_of_a_wait_sum_up_to_it(
    changes: list[tuple[int, str]], ready: int, waited: int
) -> None:
    switches: list[list[object]] = []
    for at, key in sorted(changes):
        switches = switched(switches, at, key)
    assert sum(durations(ready, ready + waited, switches, "limit")) == waited
