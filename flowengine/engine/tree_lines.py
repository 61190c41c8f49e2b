"""The lines of a run's tree: steps, items and calls, and how many of them are not shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from flowengine.engine.results import FailedTry
from flowengine.engine.try_records import NOT_WAITED, Waited
from flowengine.engine.waits_for import WaitsFor
from flowengine.evaluator.states import StepState
from flowengine.program.nodes import Json


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step or an item of a foreach."""

    depth: int
    name: str  #: the path relative to its parent line
    path: str
    facet: str
    state: str
    error: dict[str, Any] | None
    created: int
    updated: int
    tries: int
    losses: int
    task_state: str | None
    task_list: str | None
    circuit: str = ""
    task_due: int | None = None
    parked_until: int | None = None
    retry_at: int | None = None  #: when the next try is due, after one that failed
    allowed_tries: int | None = None  #: of a step with more than one try
    failed_tries: Sequence[FailedTry] = ()  #: all before the last try
    queued: int = 0  #: milliseconds that its tries could be claimed and waited for a worker
    waited: Waited = NOT_WAITED  #: of all its tries, by reason
    blocked_on: str | None = None  #: the limit or rate for which it waits
    progress: Json = None  #: as the code of its last try reported it
    ran: int | None = None  #: milliseconds that workers ran its tries; None: no try has begun
    child_run: str | None = None  #: the run that it has started
    wakes_at: int | None = None  #: when a step that waits without a worker stops waiting
    question: str = ""  #: the name of the answer that it waits for
    waits_for: WaitsFor | None = None
    #: Of a round of a loop by recursion: its number, and that of the round that made it fail.
    round: int | None = None
    failed_in: int | None = None
    own_time: int | None = None  #: of a round: milliseconds without the rounds inside it
    awaited: Sequence[str] = ()  #: of a suspended function: the calls that it waits for


@dataclass(frozen=True, slots=True)
class HiddenItems:
    """The number of items of a foreach, rounds of a loop or calls that are not shown."""

    depth: int
    counts: Mapping[str, int]  #: by state, most frequent first
    kind: str = "items"  #: items, rounds of a loop, or calls of a durable function


@dataclass(frozen=True, slots=True)
class RunTree:
    """The steps of a run as lines, in program order."""

    lines: Sequence[StepLine | HiddenItems]
    steps: int
    steps_ended: int
    is_cut: bool  #: some lines are missing because of the limit


def with_awaited(lines: list[StepLine | HiddenItems]) -> list[StepLine | HiddenItems]:
    """Return the lines; those of suspended functions with the calls that they wait for."""
    found = list(lines)
    for at, line in enumerate(lines):
        if not isinstance(line, StepLine) or line.state != StepState.SUSPENDED:
            continue
        names = []
        for other in islice(lines, at + 1, None):
            if other.depth <= line.depth:
                break
            if not isinstance(other, StepLine) or other.depth > line.depth + 1:
                continue
            if other.state not in StepState.FINAL:
                names.append(other.name)
        found[at] = replace(line, awaited=names)
    return found
