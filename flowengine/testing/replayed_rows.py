"""The rows of a replayed run, as they were before each commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flowengine.evaluator import Missing, RunView, Snapshot, Step, evaluate, working_set
from flowengine.evaluator.outline import outlined
from flowengine.evaluator.records import CachedResult, IterationChanges
from flowengine.evaluator.states import StepState
from flowengine.evaluator.triggers import Trigger
from flowengine.program.nodes import Json
from flowengine.program.plan import Plan
from flowengine.testing.recorded_inputs import Unrecorded


class _AllRows(dict[str, "Step | None"]):
    """The rows so far: every key is present, and maps to None without a row."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> None:
        return None


class ReplayedRows:
    """Gives the evaluator the rows that the engine would load from a database."""

    def __init__(self, plan: Plan, payloads: Mapping[str, Json]) -> None:
        self.steps = _AllRows()
        #: The last result that a task of each step reported, by the key of the step.
        self.results: dict[str, dict[str, Any]] = {}
        self._plan, self._payloads = plan, dict(payloads)

    def evaluate(
        self,
        before: RunView,
        triggers: Sequence[Trigger],
        now: int,
        reused: Mapping[str, CachedResult | None],
    ) -> tuple[RunView, IterationChanges]:
        """Return the run after these inputs, and the changes of its rows."""
        snapshot = Snapshot(self.steps, self._payloads, cached=dict(reused))
        while True:
            view = before.copied()
            changes = evaluate(self._plan, view, snapshot, triggers, now, prefetched=True)
            if not isinstance(changes, Missing):
                return view, changes
            self._load(snapshot, changes)

    def _load(self, snapshot: Snapshot, missing: Missing) -> None:
        if absent := missing.payloads - self._payloads.keys():
            names = ", ".join(sorted(absent))
            raise Unrecorded(f"the export lacks large values that the run has read: {names}")
        if missing.outline:
            snapshot.outline = [outlined(step) for step in self.steps.values() if step is not None]
        snapshot.results |= {key: self.results.get(key) for key in missing.results}
        snapshot.at_event |= {after: self._at_event(after) for after in missing.pages}
        snapshot.cached |= dict.fromkeys(missing.cached)  # it had no result of these keys
        snapshot.last_calls |= {key: self._last_call(key) for key in missing.last_calls}

    def _last_call(self, function: str) -> int | None:
        """Return when the last call of a durable function was recorded."""
        calls = (step for step in self.steps.values() if step is not None)
        return max((step.created for step in calls if step.parent == function), default=None)

    def _at_event(self, after: str) -> list[str]:
        """Return the next page of steps that wait at their event."""
        waiting = sorted(
            key
            for key, step in self.steps.items()
            if key > after and step is not None and step.state == StepState.EVENT_TRANSMIT
        )
        return waiting[: working_set.PAGE]

    def add(self, steps: Iterable[Step]) -> None:
        """Add rows that no commit has written."""
        self.steps.update((step.key, step) for step in steps)

    def apply(self, changes: IterationChanges) -> None:
        for key in changes.superseded:
            self.steps.pop(key, None)
        for step in (*changes.created_steps, *changes.updated_steps):
            self.steps[step.key] = step
