"""A slice is followed by the next one while nobody else waits, ten times at most."""

from __future__ import annotations

from flowengine.worker.time_slice import TimeSlice


class Watch:
    """A clock that the test moves; and others that wait or not."""

    now, others_wait, asked = 100.0, False, 0

    def __call__(self) -> float:
        return self.now

    def is_asked(self) -> bool:
        self.asked += 1
        return self.others_wait


def test_nobody_is_asked_before_the_slice_is_over() -> None:
    watch = Watch()
    time_slice = TimeSlice(0.5, watch.is_asked, watch)
    watch.now += 0.5
    assert not time_slice.is_over()
    assert not time_slice.has_elapsed
    assert watch.asked == 0


def test_a_slice_is_over_for_good_when_others_wait() -> None:
    watch = Watch()
    time_slice = TimeSlice(0.5, watch.is_asked, watch)
    watch.now += 0.75
    watch.others_wait = True
    assert time_slice.is_over()
    watch.others_wait = False
    assert time_slice.is_over()
    assert time_slice.has_elapsed
    assert watch.asked == 1


def test_others_are_asked_for_once_in_each_slice() -> None:
    watch = Watch()
    time_slice = TimeSlice(0.5, watch.is_asked, watch)
    watch.now += 0.75
    assert time_slice.has_elapsed
    assert [time_slice.is_over() for _ in range(5)] == [False] * 5
    assert watch.asked == 1
    assert not time_slice.has_elapsed


def test_ten_slices_are_the_most() -> None:
    watch = Watch()
    time_slice = TimeSlice(0.5, watch.is_asked, watch)
    while watch.now <= 100.0 + 10 * 0.5:
        assert not time_slice.is_over()
        watch.now += 0.625
    assert time_slice.is_over()
    assert watch.asked == 8


def test_none_follows_a_task_that_took_longer_than_a_slice() -> None:
    watch = Watch()
    time_slice = TimeSlice(0.5, watch.is_asked, watch)
    watch.now += 1.25
    assert time_slice.is_over()
    assert watch.asked == 0


def test_none_follows_if_nobody_can_be_asked() -> None:
    watch = Watch()
    time_slice = TimeSlice(0.5, clock=watch)
    watch.now += 0.75
    assert time_slice.is_over()
