"""Batch sizing from measured durations."""

from __future__ import annotations

import pytest

from flowengine.worker.batch import BatchSizing


def test_a_facet_is_quick_after_two_quick_tries() -> None:
    sizing = BatchSizing(0.002)
    assert not sizing.is_quick("f")
    sizing.count("f", 0.001)
    assert not sizing.is_quick("f"), "one try is not enough"
    sizing.count("f", 0.001)
    assert sizing.is_quick("f")
    assert sizing.quick(["f", "g"]) == ["f"]


def test_after_a_slow_try_the_batch_size_begins_at_one_and_grows() -> None:
    now = [0.0]
    sizing = BatchSizing(0.002, clock=lambda: now[0])
    for _ in range(100):
        sizing.count("f", 0.0001)
    assert sizing.fitting(["f"], 0.025) > 100
    sizing.count("f", 1.0)
    assert not sizing.is_quick("f"), "one at a time, until a try is quick again"
    sizes = []
    for _ in range(3):
        sizing.count("f", 0.0001)
        assert sizing.is_quick("f")
        sizes.append(sizing.fitting(["f"], 0.025))
    assert sizes == [3, 6, 9]
    now[0] = 11
    assert sizing.fitting(["f"], 0.025) > 100, "the slow try is forgotten"


def test_a_slow_try_does_not_shrink_the_batches_of_other_facets() -> None:
    sizing = BatchSizing(0.002)
    for _ in range(3):
        sizing.count("steady", 0.0001)
    for seconds in (1.0, 0.0001):
        sizing.count("moody", seconds)
    names = ["steady", "moody"]
    assert sizing.quick(names, last="steady") == ["steady"]
    assert sizing.quick(names, last="moody") == names, "it was claimed last"
    assert sizing.fitting(names, 0.025) == 3


def test_a_facet_that_is_always_slow_is_never_quick() -> None:
    sizing = BatchSizing(0.002)
    for _ in range(5):
        sizing.count("f", 1.0)
    assert not sizing.is_quick("f")


def test_a_facet_that_is_slow_on_average_is_not_quick() -> None:
    sizing = BatchSizing(0.002)
    for _ in range(10):
        sizing.count("f", 0.005)
    assert not sizing.is_quick("f")


def test_the_batch_size_is_the_number_of_tries_that_fit_into_the_time() -> None:
    sizing = BatchSizing(0.002)
    for name, seconds in (("f", 0.0001), ("g", 0.001)):
        sizing.count(name, seconds)
        sizing.count(name, seconds)
    assert sizing.fitting(["f"], 0.025) == pytest.approx(250, abs=1)
    assert sizing.fitting(["f", "g"], 0.025) == pytest.approx(25, abs=1), "the slowest counts"
    assert sizing.fitting([], 0.025) == 1


def test_overhead_makes_batches_smaller_and_no_facet_slow() -> None:
    sizing = BatchSizing(0.002)
    for _ in range(50):
        sizing.count("f", 0.0001, overhead=0.005)
    assert sizing.is_quick("f")
    assert sizing.fitting(["f"], 0.025) == 9, "half of the overhead counts"
    for _ in range(50):
        sizing.count("f", 0.0001)
    assert sizing.fitting(["f"], 0.025) > 100, "the overhead is over"


def test_overhead_of_one_facet_does_not_shrink_the_batches_of_others() -> None:
    sizing = BatchSizing(0.002)
    for _ in range(3):
        sizing.count("plain", 0.0005)
        sizing.count("agent", 0.0001, overhead=0.008)
    names = ["plain", "agent"]
    assert sizing.quick(names, last="plain") == ["plain"]
    assert sizing.quick(names, last="agent") == names, "it was claimed last"


def test_a_try_with_much_overhead_is_a_slow_one() -> None:
    """The engine has waited for its database, or a further model call was slow."""
    now = [0.0]
    sizing = BatchSizing(0.002, clock=lambda: now[0])
    for _ in range(10):
        sizing.count("agent", 0.0001)
    sizing.count("agent", 0.0001, overhead=30.0)
    assert not sizing.is_quick("agent"), "one at a time, until a try is quick again"
    sizing.count("agent", 0.0001)
    now[0] = 11
    assert sizing.fitting(["agent"], 0.025) > 100, "the slow try is forgotten"
