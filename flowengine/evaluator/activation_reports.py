"""The report of an activation as JSON: in the row of its task, and in the spool."""

from __future__ import annotations

from typing import Any

from flowengine.evaluator.call_statements import call_from_json, call_to_json
from flowengine.evaluator.triggers import ActivationEnded, Failed, Succeeded


def to_json(report: ActivationEnded) -> dict[str, Any]:
    """Return a report without the fields that have their usual value."""
    found: dict[str, Any] = {"seen": report.seen}
    if report.calls:
        found["calls"] = [call_to_json(call) for call in report.calls]
    if report.heard:
        found["heard"] = list(report.heard)
    if report.cancelled:
        found["cancelled"] = list(report.cancelled)
    if isinstance(report.ended, Succeeded):
        found["result"] = report.ended.result
    elif report.ended is not None:
        found["error"] = report.ended.error
    if report.failed is not None:
        found["failed"] = [report.failed.error, report.failed.retry]
    if report.is_partial:
        found["is_partial"] = True
    if report.in_place:
        found["in_place"] = report.in_place
    return found


def from_json(found: dict[str, Any]) -> ActivationEnded:
    """Return a stored report."""
    ended: Succeeded | Failed | None = None
    if "result" in found:
        ended = Succeeded(found["result"], is_checked=True)
    elif "error" in found:
        ended = Failed(found["error"], retry=False)
    return ActivationEnded(
        calls=tuple(call_from_json(call) for call in found.get("calls", ())),
        heard=tuple(found.get("heard", ())),
        cancelled=tuple(found.get("cancelled", ())),
        ended=ended,
        seen=found["seen"],
        failed=Failed(*found["failed"]) if "failed" in found else None,
        is_partial=found.get("is_partial", False),
        in_place=found.get("in_place", 0),
    )
