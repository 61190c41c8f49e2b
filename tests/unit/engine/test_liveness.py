"""The liveness window with a clock that the test moves."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from flowengine.engine.liveness import LivenessWindow, is_out_of_reach, longest_unnoticed_gap
from flowengine.settings import Settings

SECOND = 1000
START = 1_000_000 * SECOND


def observed(*pauses: int, interval: int = SECOND) -> LivenessWindow:
    """A window after passes that follow each other after these pauses."""
    window = LivenessWindow(0, unnoticed=SECOND).observe(START, interval)
    for pause in pauses:
        window = window.observe(window.now + pause, interval)
    return window


def test_silence_is_counted_from_the_first_pass() -> None:
    window = observed(*[SECOND] * 10)
    assert window.silence(last_sign=0, timeout=5 * SECOND) == 10 * SECOND


def test_silence_is_counted_from_the_last_heartbeat() -> None:
    window = observed(*[SECOND] * 10)
    assert window.silence(START + 7 * SECOND, 5 * SECOND) == 3 * SECOND
    assert not window.is_silent(START + 5 * SECOND, 5 * SECOND)
    assert window.is_silent(START + 5 * SECOND - 1, 5 * SECOND)


def test_an_outage_restarts_the_count() -> None:
    window = observed(*[SECOND] * 10, 6 * SECOND, SECOND, SECOND)
    assert window.silence(START + 10 * SECOND, 3 * SECOND) == 2 * SECOND


def test_a_short_gap_does_not_postpone_a_long_timeout() -> None:
    window = observed(*[SECOND] * 600, 6 * SECOND, SECOND)
    assert window.is_silent(START, 600 * SECOND)
    assert not window.is_silent(START, 3 * SECOND)


def test_a_later_short_gap_does_not_hide_an_earlier_long_one() -> None:
    window = observed(*[SECOND] * 10, 300 * SECOND, SECOND, 4 * SECOND, SECOND)
    assert window.silence(START, 60 * SECOND) == 6 * SECOND
    assert window.silence(START, 3 * SECOND) == 1 * SECOND


def test_a_late_pass_within_the_unnoticed_gap_changes_nothing() -> None:
    window = observed(SECOND, 2 * SECOND, SECOND)
    assert window.gaps == observed().gaps


def test_a_clock_that_was_set_back_restarts_every_count() -> None:
    window = observed(*[SECOND] * 100, -3600 * SECOND, SECOND)
    assert window.silence(0, 10**9) == SECOND
    assert not window.is_silent(0, 30 * SECOND)


def test_a_gap_whose_end_lies_ahead_of_the_clock_is_ignored() -> None:
    window = LivenessWindow(START, gaps={4: START + 3600 * SECOND, 5: START - SECOND})
    assert window.silence(0, SECOND) == SECOND


def test_a_lease_is_out_of_reach_only_beyond_the_difference_of_two_clocks() -> None:
    assert not is_out_of_reach(until=START + 900, now=START, duration=450)
    assert is_out_of_reach(until=START + 901, now=START, duration=450)


def test_passes_at_their_interval_leave_no_gap() -> None:
    for interval in (0.05, 0.5, 10):
        settings = Settings(watchdog_interval=interval)
        assert longest_unnoticed_gap(settings) >= 2 * interval * SECOND


HORIZON = 200 * SECOND


@given(
    timeout=st.integers(SECOND, 60 * SECOND),
    outages=st.lists(st.tuples(st.integers(0, HORIZON), st.integers(0, 60 * SECOND)), max_size=3),
    first=st.integers(0, 60 * SECOND),
)
def test_a_sender_of_three_heartbeats_per_timeout_is_never_silent(
    timeout: int, outages: list[tuple[int, int]], first: int
) -> None:
    away = [(START + at, START + at + length) for at, length in outages]
    # Two outages closer than a timeout may swallow more than their own length explains.
    assume(not any(0 < begin - end < timeout for begin, _ in away for _, end in away))

    def is_reachable(at: int) -> bool:
        return not any(begin <= at < end for begin, end in away)

    beats = iter(
        beat
        for beat in range(START + first % (timeout // 3), START + HORIZON, timeout // 3)
        if is_reachable(beat)
    )
    window, last, following = LivenessWindow(0, unnoticed=SECOND), START, next(beats, None)
    for now in filter(is_reachable, range(START, START + HORIZON, SECOND // 2)):
        while following is not None and following <= now:
            last, following = following, next(beats, None)
        window = window.observe(now, 450)
        assert not window.is_silent(last, timeout)
