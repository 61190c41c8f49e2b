"""Paths of loops are folded for readers, and all others are shown as they are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.errors import RunFailed
from flowengine.shown_paths import shown_path


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("loop" + ".when[case-0].loop" * 199 + ".work", "loop(.when[case-0].loop)×199.work"),
        ("flow.down" + "[case-0].down" * 4, "flow(.down[case-0])×4.down"),
        ("a" + ".a" * 10 + "[3].b" + ".b" * 10, "a(.a)×10[3](.b)×11"),
        ("loop" + ".when[case-0].loop" * 3 + ".work", "loop" + ".when[case-0].loop" * 3 + ".work"),
        ("word_count.foreach[3].fetch", "word_count.foreach[3].fetch"),
        ("", ""),
    ],
)
def test_repetitions_of_a_path_are_folded(path: str, shown: str) -> None:
    assert shown_path(path) == shown


def test_the_error_of_a_run_folds_the_rounds_of_a_loop() -> None:
    path = "loop" + ".when[case-0].loop" * 199 + ".work"
    failed = RunFailed("7" * 32, path, "ValueError", "no")
    assert "failed at loop(.when[case-0].loop)×199.work: ValueError: no" in str(failed)
    assert failed.path == path


_PARTS = st.sampled_from([".a", ".b", "[0]", "[case-1]", ".sys.log"])


@given(st.lists(st.lists(_PARTS, max_size=4).map(lambda unit: "".join(unit * 5)), max_size=4))
def test_a_folded_path_names_the_same_step(units: list[str]) -> None:
    path = "flow" + "".join(units)
    unfolded = re.sub(r"\(([^)]*)\)×(\d+)", lambda m: m[1] * int(m[2]), shown_path(path))
    assert unfolded == path
