"""The page of the agent SDK names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "agent-sdk.md").read_text()))
    places = [
        *(ROOT / "tests/integration/sdk").glob("*.py"),
        ROOT / "tests/integration/test_claims.py",
    ]
    defined = {name for path in places for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert named
    assert named <= defined
