"""Formatting of runs and steps on a page: symbols, colours, labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from flowengine.engine.call_lines import activation_count, awaited_label
from flowengine.engine.log_entries import LogEntry
from flowengine.engine.presentation import (
    elapsed,
    outstanding,
    round_label,
    round_time,
    status_and_label,
    try_count,
)
from flowengine.engine.results import (
    FailedTry,
    RunSummary,
    StepStatus,
    duration,
    step_status,
)
from flowengine.engine.run_tree import HiddenItems, StepLine
from flowengine.evaluator.states import RunState, StepState
from flowengine.printable import printable
from flowengine.shown_paths import shown_path

#: Longest value on a page, in characters. The API returns the whole value.
_MAX_CHARACTERS = 20_000
_MAX_LINE = 2_000  #: characters of a line of a log
_MAX_TRIES = 20  #: earlier tries of a step. The API returns all.

#: Badges of runs. Blue is Flower's colour for active tasks.
RUN_BADGES = {
    RunState.COMPLETED: "text-bg-success",
    RunState.FAILED: "text-bg-danger",
    RunState.CANCELLED: "text-bg-secondary",
    RunState.RUNNING: "flow-in-progress",
    RunState.HELD: "text-bg-warning",
    RunState.CANCELLING: "text-bg-warning",
}


def log_line(entry: LogEntry, zone: tzinfo = UTC) -> str:
    """Return a line of a log as a page shows it."""
    at = datetime.fromtimestamp(entry.at / 1000, zone)
    again = f" try {entry.try_number}" if entry.try_number > 1 else ""
    source = f"{entry.level} {entry.logger}" if entry.logger else entry.stream
    text = printable(entry.text, limit=_MAX_LINE)
    return f"{at:%H:%M:%S} {shown_path(entry.path)}{again} {source}: {text}"


__all__ = ["duration", "shown_path"]  # used by the templates

_COLOURS = {
    StepStatus.COMPLETE: "flow-green",
    StepStatus.FAILED: "flow-red",
    StepStatus.SKIPPED: "text-warning-emphasis",
    StepStatus.CANCELLED: "text-body-secondary",
    StepStatus.HELD: "text-warning-emphasis",
    StepStatus.CREATED: "text-body-secondary",
    StepStatus.WAITING: "flow-blue",
    StepStatus.LIMITED: "text-warning-emphasis",
    StepStatus.RATED: "text-warning-emphasis",
    StepStatus.PARKED: "text-warning-emphasis",
    StepStatus.DIVERGED: "text-warning-emphasis",
    StepStatus.RETRYING: "text-warning-emphasis",
    StepStatus.RUNNING: "flow-blue",
    StepStatus.CHILD_RUN: "flow-blue",
    StepStatus.SLEEPING: "flow-blue",
    StepStatus.ASKING: "text-warning-emphasis",
    StepStatus.LIMITED: "text-warning-emphasis",
    StepStatus.HELD: "text-warning-emphasis",
    StepStatus.SUSPENDED: "flow-blue",
    StepStatus.IN_PROGRESS: "flow-blue",
}

#: Hidden items are counted by step state alone: their tasks are not fetched, so a claimed item
#: looks like a waiting one.
_ITEM_LABELS = {
    StepState.CREATED: "not started",
    StepState.EVENT_TRANSMIT: StepStatus.IN_PROGRESS.value,
}


def step_label(step: StepLine, now: int, zone: tzinfo = UTC) -> tuple[str, str, str]:
    """Return symbol, colour and label of a step's status."""
    status, label = status_and_label(step, now, zone=zone)
    if step.round is not None:
        label = round_label(step.round, step.failed_in) or label
    if status is StepStatus.SUSPENDED:
        label = awaited_label(step.awaited)
    return status.symbol, _COLOURS[status], label


def times(step: StepLine, now: int) -> tuple[str, str]:
    """Return how long a step ran, and how long its tries waited for a worker."""
    if step.round is not None:
        return round_time(step, step.own_time, now), ""
    return elapsed(step, now)


def hidden_items_label(hidden: HiddenItems) -> str:
    """Return the number of hidden items, rounds or calls in each state."""
    totals: dict[str, int] = {}
    for state, count in hidden.counts.items():
        label = _ITEM_LABELS.get(state) or step_status(state).value
        totals[label] = totals.get(label, 0) + count
    states = ", ".join(f"{count:,} {label}" for label, count in totals.items())
    return f"{sum(hidden.counts.values()):,} more {hidden.kind}: {states}"


def try_label(step: StepLine) -> str:
    """Return the number of tries and losses; empty for a first try without loss."""
    lost = f", {step.losses} lost" if step.losses else ""
    is_first = step.tries <= 1 and not step.losses
    if is_first:
        return ""
    count = activation_count(step.facet, step.tries)
    return (count or try_count(step.tries, step.allowed_tries)) + lost


def earlier_tries(step: StepLine) -> Sequence[FailedTry]:
    """Return the last tries before the current one."""
    return step.failed_tries[-_MAX_TRIES:]


def progress(ended: int, steps: int, *, is_final: bool, is_counted: bool = True) -> str:
    """Return how many steps have ended. A run creates steps while it runs."""
    if not is_counted:
        return f"{ended:,} of more than {steps - 1:,}"
    return f"{ended:,} of {'' if is_final else 'at least '}{steps:,}"


def run_note(run: RunSummary, now: int, zone: tzinfo = UTC) -> str:
    """Return the error of a run, its alarm, or for what it waits."""
    if run.is_final:
        return run.error_text or ""
    return run.alarm or outstanding(run.open_steps, run.retry, now, run.waits_for, zone=zone)


def age_label(milliseconds: int) -> str:
    """Return how long ago something happened, in whole units."""
    seconds = milliseconds // 1000
    for unit, length, least in (("days", 86_400, 2), ("h", 3_600, 1), ("min", 60, 1), ("s", 1, 1)):
        if seconds >= least * length:
            return f"{seconds // length} {unit} ago"
    return "just now"


def local_time(milliseconds: int, zone: tzinfo = UTC) -> str:
    """Return a time in the zone of the page, with its name."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, zone):%Y-%m-%d %H:%M:%S %Z}"


def zone_name(now: int, zone: tzinfo) -> str:
    """Return the name of the zone of the page, for times without it."""
    return f"{datetime.fromtimestamp(now / 1000, zone):%Z}"


def value(content: Any) -> str:
    """Return a value as JSON, truncated for a page."""
    line = json.dumps(content, ensure_ascii=False)
    return line if len(line) <= 100 else truncate(json.dumps(content, indent=2, ensure_ascii=False))


def truncate(text: str, longest: int = _MAX_CHARACTERS) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n… and {len(text) - longest:,} more characters"
