"""The place of a reader in a try moves only over lines that it has passed on."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.engine.log_places import TryPlace, accounted_from
from flowengine.step_logs.cap import gap_text, loss_text
from flowengine.step_logs.lines import body_of, encoded_line, lines_of, notice_line

LINE = encoded_line(1, logging.INFO, "log", "shop", gap_text(7))
GAP, LOSS = notice_line(1, gap_text(1_000)), notice_line(1, loss_text(10, "full"))


@pytest.mark.parametrize(
    ("lines", "start"),
    [([LINE], 5_000), ([GAP, LINE], 4_001), ([LOSS, GAP, LINE], 3_992), ([LINE, GAP], 5_000)],
)
def test_a_chunk_accounts_for_the_lines_that_it_says_are_left_out(
    lines: list[str], start: int
) -> None:
    assert accounted_from(lines_of(body_of(lines), 5_000)) == start


def test_a_chunk_of_notices_alone_accounts_for_them() -> None:
    assert accounted_from(lines_of(body_of([GAP]), 5_000)) == 4_001


@given(st.permutations([(1, 2), (3, 1), (4, 5), (7, 6), (13, 1)]))
def test_in_any_order_each_line_is_missing_once(chunks: list[tuple[int, int]]) -> None:
    place, passed = TryPlace(), list[int]()
    for first, count in chunks:
        for part in place.missing(first, count):
            passed += part
        place.pass_over(first, count, first)
    assert sorted(passed) == list(range(1, 14))
    assert (place.line, place.holes) == (14, [])
