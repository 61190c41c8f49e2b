"""Whether a report of a task counts: a table."""

from __future__ import annotations

import pytest

from flowengine.sdk.wire.leases import Verdict, verdict


@pytest.mark.parametrize(
    ("state", "held", "given", "outcome", "error", "is_own", "expected"),
    [
        ("running", 3, 3, None, None, True, Verdict.HELD),
        ("running", 3, 3, None, None, False, Verdict.LOST),
        ("running", 4, 3, None, None, True, Verdict.LOST),
        ("running", 2, 3, None, None, True, Verdict.LOST),
        ("pending", 3, 3, None, None, True, Verdict.LOST),
        ("canceled", 3, 3, None, None, True, Verdict.LOST),
        ("completed", 3, 3, "succeeded", None, True, Verdict.COMPLETED),
        ("completed", 3, 3, "succeeded", None, False, Verdict.LOST),
        ("completed", 4, 3, "succeeded", None, True, Verdict.LOST),
        ("failed", 3, 3, "failed", "ValueError", True, Verdict.FAILED),
        ("failed", 3, 3, "final", "ValueError", True, Verdict.FAILED),
        ("failed", 3, 3, "failed", "Timeout", True, Verdict.LOST),
        ("failed", 3, 3, "lost", "WorkerLost", True, Verdict.LOST),
        ("completed", 3, 3, "handed", None, True, Verdict.LOST),
    ],
)
def test_the_verdict_about_a_report(
    state: str,
    held: int,
    given: int,
    outcome: str | None,
    error: str | None,
    is_own: bool,
    expected: Verdict,
) -> None:
    assert verdict(state, held, given, outcome, error, is_own=is_own) is expected
