"""The pages of the agent SDK name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "docs" / "agent-sdk.md", *sorted((ROOT / "docs" / "sdk").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text()))
    places = (ROOT / "tests").rglob("test_*.py")
    defined = {name for path in places for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert named
    assert named <= defined
