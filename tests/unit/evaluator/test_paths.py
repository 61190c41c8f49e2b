"""What a path tells of the rows above it."""

from __future__ import annotations

import pytest

from flowengine.evaluator.paths import above
from flowengine.evaluator.records import row_key
from flowengine.program.plan import RowKind

KINDS = {kind.value: kind for kind in RowKind}


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ("W", ""),
        ("W.a", "b:W s:W"),
        ("W.block-1.a", "b:W.block-1 s:W"),
        ("W.each[3].a", "i:W.each[3] f:W.each s:W.each b:W s:W"),
        ("W.foreach-2[0].a", "i:W.foreach-2[0] f:W.foreach-2 s:W"),
        ("W[case-1].a", "c:W[case-1] w:W s:W"),
        ("W.when-1[default].a", "c:W.when-1[default] w:W.when-1 s:W"),
        ("W.s[catch].a", "b:W.s[catch] s:W.s b:W s:W"),
        ("W.s[catch][case-0].a", "c:W.s[catch][case-0] w:W.s[catch] s:W.s b:W s:W"),
        ("W.s[with-m].a", "b:W.s[with-m] s:W.s[with-m] s:W.s b:W s:W"),
    ],
)
def test_the_rows_above_are_named_from_the_nearest_outwards(path: str, rows: str) -> None:
    expected = [row_key(KINDS[row[0]], row[2:]) for row in rows.split()]
    found = list(above(path))
    assert [key for key in found if key in expected] == expected
    assert len(found) <= len(expected) + 1, "few are asked for in vain"
