"""Every example is runnable alone, in an empty directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").rglob("*.py"))
SAYS = {
    "quickstart": ["29 words"],
    "order_pipeline": ["mail to ada@example.org", "receipt-", "only 0 of teapot left"],
    "fan_out": ["'stations': 60"],
    "reminders": ["to Ben: Please bring back Emma. Your fine is 220", "'costs': [85, 85]"],
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_alone(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for text in SAYS[example.stem]:
        assert text in done.stdout
