"""The changes of events, derived from the commits of runs and the rows that they name. Pure.

A commit says which steps reached their event, which tries ended, which were followed by another,
and which events were ended from outside. The start of a try is in its row: a claim writes no
history, so an event that is processed shows that with the commit that ends the try.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowengine.engine.history import ACTIVATIONS, BEGUN, SUSPENDED
from flowengine.evaluator.call_statements import key_of_path
from flowengine.evaluator.records import row_key
from flowengine.evaluator.states import EventState, StepState
from flowengine.program.addresses import RowKind
from flowengine.store.feed import FeedEntry, FeedStep, FeedTry

#: Sequence numbers are places of commits, times this, plus the place of a change in its commit.
SCALE = 1_000_000
_AT_EVENT = StepState.EVENT_TRANSMIT.removeprefix("state.")
_SUCCEEDED = "succeeded"


@dataclass(frozen=True, slots=True)
class EventChange:
    """An event entered a state."""

    seq: int  #: its place in the feed: pass the last one as `after` to go on behind it
    run_id: str
    event_id: str
    step_id: str
    path: str  #: of the step
    event_type: str  #: the qualified name of the facet
    state: str  #: an `EventState`
    at: int  #: milliseconds since the epoch
    try_number: int = 0  #: 0: no try had a part in it
    losses: int = 0  #: tries before it whose worker died
    error_type: str | None = None


@dataclass(frozen=True, slots=True)
class NamedRows:
    """The rows that some commits name."""

    steps: Mapping[tuple[str, str], Sequence[FeedStep]] = field(default_factory=dict)  #: by key
    by_id: Mapping[str, FeedStep] = field(default_factory=dict)
    events: Mapping[str, tuple[str, str]] = field(default_factory=dict)  #: by step: id and type
    tries: Mapping[str, Sequence[FeedTry]] = field(default_factory=dict)  #: by step

    def candidates(self, run_id: str, name: str, generation: int) -> list[FeedStep]:
        """Return the steps that a commit may mean by a name, the newest first."""
        found = self.steps.get((run_id, key_of(name)), ())
        known = [s for s in found if s.generation <= generation and s.id in self.events]
        return sorted(known, key=lambda step: -step.generation)


def key_of(name: str) -> str:
    """Return the key of a step by the name that a commit gives it: its path, or # and its key."""
    if name.startswith("#"):
        return name[1:]
    return key_of_path(name) or row_key(RowKind.STEP, name)


def names_of(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names by which a commit means steps whose events may have changed."""
    yield from _begun(body)
    yield from body.get("steps", {}).get(_SUCCEEDED, ())
    for part in ("tries", "retries", "reused"):
        yield from (row[0] for row in body.get(part, ()))


def _is_function(event: tuple[str, str]) -> bool:
    """Whether an event is that of a durable function: its type has the version in the name."""
    return "@" in event[1]


def _begun(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the steps that reached their event."""
    yield from body.get("steps", {}).get(_AT_EVENT, ())
    yield from body.get(BEGUN, ())


def ids_of(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids of steps whose events were ended from outside."""
    for step_ids in body.get("left", {}).values():
        yield from step_ids


def changes_of(entry: FeedEntry, body: Mapping[str, Any], rows: NamedRows) -> list[EventChange]:
    """Return the changes of one commit, in order: ends first, then the events that begin."""
    found = _Commit(entry, body, rows)
    found.tries()
    found.left()
    found.retries()
    found.begun()
    found.reused()
    return found.changes


class _Commit:
    def __init__(self, entry: FeedEntry, body: Mapping[str, Any], rows: NamedRows) -> None:
        self._entry, self._body, self._rows = entry, body, rows
        self._generation = body.get("generation", 0)
        self._left = {i: state for state, ids in body.get("left", {}).items() for i in ids}
        self._late = set(body.get("late", ()))
        self._retried = {(row[0], row[1], row[2]) for row in body.get("retries", ())}
        self.changes: list[EventChange] = []

    def _add(
        self,
        step: FeedStep,
        state: str,
        at: int | None = None,
        tried: FeedTry | None = None,
        error_type: str | None = None,
    ) -> None:
        event_id, event_type = self._rows.events[step.id]
        self.changes.append(
            EventChange(
                seq=self._entry.position * SCALE + len(self.changes) + 1,
                run_id=self._entry.run_id,
                event_id=event_id,
                step_id=step.id,
                path=step.path,
                event_type=event_type,
                state=state,
                at=self._entry.at if at is None else at,
                try_number=tried.number if tried else 0,
                losses=tried.losses if tried else 0,
                error_type=error_type,
            )
        )

    def _steps(self, name: str) -> list[FeedStep]:
        return self._rows.candidates(self._entry.run_id, name, self._generation)

    def tries(self) -> None:
        listed = [(name, 1, 0, _SUCCEEDED, None) for name in self._succeeded()]
        for name, number, losses, outcome, error_type in (*listed, *self._body.get("tries", ())):
            found = self._tried(name, number, losses)
            if found is None:
                continue
            step, tried = found
            self._processing(step, tried)
            if step.id in self._left:
                continue  # ended from outside before
            if outcome == _SUCCEEDED:
                self._add(step, EventState.COMPLETED, tried=tried)
            elif outcome == SUSPENDED:
                continue  # the event of a function is processed until its last activation
            elif not self._is_retried(name, number, losses, outcome):
                error = error_type or ("WorkerLost" if outcome == "lost" else None)
                self._add(step, EventState.ERROR, tried=tried, error_type=error)

    def _succeeded(self) -> Sequence[str]:
        names: Sequence[str] = self._body.get("steps", {}).get(_SUCCEEDED, ())
        return names

    def _tried(self, name: str, number: int, losses: int) -> tuple[FeedStep, FeedTry] | None:
        """Return the step and the try that a commit means; None: the report came too late."""
        found = [
            (step, tried)
            for step in self._steps(name)
            for tried in self._rows.tries.get(step.id, ())
            if (tried.number, tried.losses) == (number, losses)
        ]
        if "Action" in self._body["happened"]:
            # It may have created a try of the same number, which did not end in this commit.
            found = [one for one in found if one[1].created < self._entry.at] or found
        return found[0] if found and found[0][1].uuid not in self._late else None

    def _is_retried(self, name: str, number: int, losses: int, outcome: str) -> bool:
        after = (number, losses + 1) if outcome == "lost" else (number + 1, losses)
        return (name, *after) in self._retried

    def _processing(self, step: FeedStep, tried: FeedTry) -> None:
        if tried.has_limits:  # admitted between two commits
            self._add(step, EventState.DISPATCHED, tried.started, tried)
        self._add(step, EventState.PROCESSING, tried.started, tried)

    def left(self) -> None:
        for step_id, state in self._left.items():
            step = self._rows.by_id.get(step_id)
            if step is None or step_id not in self._rows.events:
                continue  # it slept, or waited for an answer
            tried = next(reversed(self._rows.tries.get(step_id, ())), None)
            seen = {change.try_number for change in self.changes if change.step_id == step_id}
            if tried is not None and tried.started is not None and tried.number not in seen:
                self._processing(step, tried)
            self._add(step, state, tried=tried)

    def retries(self) -> None:
        for name, number, losses, _due in self._body.get("retries", ()):
            found = self._tried(name, number, losses)
            if found is None or found[0].id in self._left:
                continue  # ended from outside, by an input behind it
            step, tried = found
            state = EventState.CREATED if tried.has_limits else EventState.DISPATCHED
            self._add(step, state, tried=tried)

    def begun(self) -> None:
        activations = dict(self._body.get(ACTIVATIONS, ()))
        for name in _begun(self._body):
            for step in self._steps(name)[:1]:
                tries = self._rows.tries.get(step.id, ())
                if not tries:
                    continue
                if name in activations:
                    self._activated(step, tries, activations[name])
                    continue
                if tries[0].created < self._entry.at and _is_function(self._rows.events[step.id]):
                    self._activated_at(step, tries)
                    continue
                self._add(step, EventState.CREATED, tried=tries[0])
                if not tries[0].has_limits:
                    self._add(step, EventState.DISPATCHED, tried=tries[0])

    def _activated(self, step: FeedStep, tries: Sequence[FeedTry], number: int) -> None:
        """Add the next activation of a function, whose event is there already."""
        for tried in tries:
            if (tried.number, tried.losses) == (number, 0):
                self._add(step, EventState.DISPATCHED, tried=tried)

    def _activated_at(self, step: FeedStep, tries: Sequence[FeedTry]) -> None:
        """Add the next activation, of a commit of an early version, which has not its number."""
        for tried in tries:
            if tried.created == self._entry.at:  # none: it ran ahead
                self._add(step, EventState.DISPATCHED, tried=tried)

    def reused(self) -> None:
        for row in self._body.get("reused", ()):
            for step in self._steps(row[0])[:1]:
                self._add(step, EventState.CREATED)
                self._add(step, EventState.COMPLETED)
