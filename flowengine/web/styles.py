"""How runs and steps look on a page: signs, colours, words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from flowengine.engine.presentation import SIGNS, Look, circuit_wait, duration, look
from flowengine.engine.results import RunSummary
from flowengine.engine.run_tree import DrawnStep
from flowengine.evaluator.states import RunState, StepState

#: Longest text of one value on a page, in characters. The API gives it whole.
_LONGEST = 20_000

#: Badges of runs. Blue is Flower's own colour of what is under way.
RUN_BADGES = {
    RunState.COMPLETED: "text-bg-success",
    RunState.FAILED: "text-bg-danger",
    RunState.RUNNING: "flow-under-way",
}

_COLOURS = {
    Look.COMPLETE: "flow-green",
    Look.FAILED: "flow-red",
    Look.SKIPPED: "text-warning-emphasis",
    Look.CREATED: "text-body-secondary",
    Look.WAITING: "flow-blue",
    Look.PARKED: "text-warning-emphasis",
    Look.RUNNING: "flow-blue",
    Look.HANDED_OVER: "flow-blue",
    Look.UNDER_WAY: "flow-blue",
}

#: Items are counted by the states of their steps alone. What waits at nothing itself does not wait
#: for others, and whether a worker has one in hand is known from its task.
_OF_ITEMS = {StepState.CREATED: "not begun", StepState.EVENT_TRANSMIT: Look.UNDER_WAY.value}


def step_look(step: DrawnStep, now: int) -> tuple[str, str, str]:
    """Return sign, colour and word for a step's state."""
    found = look(step.state, step.task_state, is_parked=(step.parked_until or 0) > now)
    word = found.value
    if found is Look.PARKED and step.parked_until is not None:
        until = datetime.fromtimestamp(step.parked_until / 1000, UTC)
        word = circuit_wait(step.circuit, f"{until:%H:%M:%S} UTC")
    return SIGNS[found], _COLOURS[found], word


def counted(counts: Mapping[str, int]) -> str:
    """Say how many items there are in which state."""
    words: dict[str, int] = {}
    for state, count in counts.items():
        word = _OF_ITEMS.get(state) or look(state).value
        words[word] = words.get(word, 0) + count
    said = ", ".join(f"{count:,} {word}" for word, count in words.items())
    return f"{sum(counts.values()):,} more items: {said}"


def took(step: DrawnStep, now: int) -> str:
    """Say how long a step has taken so far; nothing for one that did nothing."""
    if step.state in (StepState.CREATED, StepState.SKIPPED):
        return ""
    return duration((step.updated if step.state in StepState.FINAL else now) - step.created)


def tries(step: DrawnStep) -> str:
    """Say how often a step was tried, where that is worth a word."""
    lost = f", {step.losses} lost" if step.losses else ""
    return f"try {step.tries}{lost}" if step.tries > 1 or step.losses else ""


def remark(run: RunSummary) -> str:
    """Say what a run waits for, or why it failed."""
    if run.is_final:
        return run.error_text or ""
    if run.alarm:
        return run.alarm
    steps = "1 step" if run.open_steps == 1 else f"{run.open_steps:,} steps"
    return f"waits for {steps}" if run.open_steps else ""


def age(milliseconds: int) -> str:
    """Write how long ago something was; nobody counts milliseconds of that."""
    return "just now" if milliseconds < 1000 else f"{_rounded(milliseconds)} ago"


def _rounded(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= (2 * length if unit == "days" else length):
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def moment(milliseconds: int) -> str:
    """Write a time for people in any place."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def value(found: Any) -> str:
    """Write a value as JSON, as far as a page can bear."""
    line = json.dumps(found, ensure_ascii=False)
    return line if len(line) <= 100 else clipped(json.dumps(found, indent=2, ensure_ascii=False))


def clipped(text: str, longest: int = _LONGEST) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n… and {len(text) - longest:,} more characters"
