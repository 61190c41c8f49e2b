"""Each promise of the guide for users of cdktr names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent
GUIDE = ROOT / "docs" / "guide" / "from-cdktr.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_promise_names_tests_that_exist() -> None:
    rows = GUIDE.read_text().partition("## Promises")[2].splitlines()
    promises = [row for row in rows if row.startswith("| ") and not row.startswith("| promise")]
    assert len(promises) >= 20
    for row in promises:
        named = _TEST.findall(row)
        assert named, row
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
