"""Formatting of runs and steps on a page: symbols, colours, labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from flowengine.engine.results import RunSummary, StepStatus, breaker_wait, duration, step_status
from flowengine.engine.run_tree import StepLine
from flowengine.evaluator.states import RunState, StepState

#: Longest value on a page, in characters. The API returns the whole value.
_MAX_CHARACTERS = 20_000

#: Badges of runs. Blue is Flower's colour for active tasks.
RUN_BADGES = {
    RunState.COMPLETED: "text-bg-success",
    RunState.FAILED: "text-bg-danger",
    RunState.RUNNING: "flow-in-progress",
}

_COLOURS = {
    StepStatus.COMPLETE: "flow-green",
    StepStatus.FAILED: "flow-red",
    StepStatus.SKIPPED: "text-warning-emphasis",
    StepStatus.CREATED: "text-body-secondary",
    StepStatus.WAITING: "flow-blue",
    StepStatus.PARKED: "text-warning-emphasis",
    StepStatus.RUNNING: "flow-blue",
    StepStatus.CHILD_RUN: "flow-blue",
    StepStatus.IN_PROGRESS: "flow-blue",
}

#: Hidden items are counted by step state alone: their tasks are not fetched, so a claimed item
#: looks like a waiting one.
_ITEM_LABELS = {
    StepState.CREATED: "not started",
    StepState.EVENT_TRANSMIT: StepStatus.IN_PROGRESS.value,
}


def step_label(step: StepLine, now: int) -> tuple[str, str, str]:
    """Return symbol, colour and label of a step's status."""
    status = step_status(step.state, step.task_state, is_parked=(step.parked_until or 0) > now)
    label = status.value
    if status is StepStatus.PARKED and step.parked_until is not None:
        until = datetime.fromtimestamp(step.parked_until / 1000, UTC)
        label = breaker_wait(step.circuit, f"{until:%H:%M:%S} UTC")
    return status.symbol, _COLOURS[status], label


def hidden_items_label(counts: Mapping[str, int]) -> str:
    """Return the number of hidden items in each state."""
    totals: dict[str, int] = {}
    for state, count in counts.items():
        label = _ITEM_LABELS.get(state) or step_status(state).value
        totals[label] = totals.get(label, 0) + count
    states = ", ".join(f"{count:,} {label}" for label, count in totals.items())
    return f"{sum(counts.values()):,} more items: {states}"


def elapsed(step: StepLine, now: int) -> str:
    """Return the duration of a step so far; empty for a step that did not start."""
    if step.state in (StepState.CREATED, StepState.SKIPPED):
        return ""
    return duration((step.updated if step.state in StepState.FINAL else now) - step.created)


def try_label(step: StepLine) -> str:
    """Return the number of tries and losses; empty for a first try without loss."""
    lost = f", {step.losses} lost" if step.losses else ""
    return f"try {step.tries}{lost}" if step.tries > 1 or step.losses else ""


def run_note(run: RunSummary) -> str:
    """Return the error, the alarm, or the number of open steps of a run."""
    if run.is_final:
        return run.error_text or ""
    if run.alarm:
        return run.alarm
    steps = "1 step" if run.open_steps == 1 else f"{run.open_steps:,} steps"
    return f"waits for {steps}" if run.open_steps else ""


def age_label(milliseconds: int) -> str:
    """Return how long ago something happened, in whole units."""
    seconds = milliseconds // 1000
    for unit, length, least in (("days", 86_400, 2), ("h", 3_600, 1), ("min", 60, 1), ("s", 1, 1)):
        if seconds >= least * length:
            return f"{seconds // length} {unit} ago"
    return "just now"


def utc_time(milliseconds: int) -> str:
    """Return a time in UTC."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def value(content: Any) -> str:
    """Return a value as JSON, truncated for a page."""
    line = json.dumps(content, ensure_ascii=False)
    return line if len(line) <= 100 else truncate(json.dumps(content, indent=2, ensure_ascii=False))


def truncate(text: str, longest: int = _MAX_CHARACTERS) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n… and {len(text) - longest:,} more characters"
