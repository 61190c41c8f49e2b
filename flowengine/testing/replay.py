"""Replay: evaluate an exported run again, commit by commit, and compare.

The evaluator is pure, so the same inputs at the same times must lead to the same transitions. A
difference is a change of the engine that would change running workflows, or a defect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flowengine.engine import history
from flowengine.errors import NotReplayable
from flowengine.evaluator import RunView
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Report, Succeeded
from flowengine.program import link_program, parse_program
from flowengine.program.limits import DEFAULT_LIMITS, Limits
from flowengine.store import codec
from flowengine.testing.recorded_inputs import RecordedInputs, Unrecorded, records
from flowengine.testing.replayed_rows import ReplayedRows


@dataclass(frozen=True, slots=True)
class Difference:
    """A commit that the evaluator decides in another way today."""

    revision: int
    what: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        recorded, replayed = (
            json.dumps(v, default=str)[:500] for v in (self.recorded, self.replayed)
        )
        return f"revision {self.revision}, {self.what}: recorded {recorded}, replayed {replayed}"


@dataclass(frozen=True, slots=True)
class Replay:
    """The outcome of a replay."""

    run: str
    commits: int
    state: str
    outputs: dict[str, Any] | None
    differences: list[Difference] = field(default_factory=list)

    def check(self) -> Replay:
        """Raise AssertionError if a commit differs."""
        assert not self.differences, "\n".join(map(str, self.differences[:10]))
        return self


def replay(source: str | Path | Mapping[str, Any]) -> Replay:
    """Evaluate the recorded inputs of an exported run again; see `Replay.check`.

    `source` is the file of `flowengine export`, or the document that `engine.export` returns.
    Raises NotReplayable if it does not have all inputs of the run.
    """
    document = source if isinstance(source, Mapping) else json.loads(Path(source).read_text())
    if document.get("format") != "flowengine.run/1":
        raise ValueError("this is not the export of a run: see `flowengine export`")
    return _Replayed(document).run()


class _Replayed:
    def __init__(self, document: Mapping[str, Any]) -> None:
        rows = document["rows"]
        self._run = records(rows["flowengine_run"])[0]
        self._history = sorted(
            records(rows["flowengine_history"]), key=lambda entry: entry["revision"]
        )
        program = json.loads(records(rows["flowengine_program"])[0]["body"])
        limits = Limits(**{**asdict(DEFAULT_LIMITS), **document.get("limits", {})})
        self._plan = link_program(
            parse_program(program, limits), allow_scripts=True, is_stored=True, limits=limits
        )
        payloads = records(rows.get("flowengine_payload"))
        self._rows = ReplayedRows(
            self._plan, {payload["hash"]: codec.load(payload["body"]) for payload in payloads}
        )
        self._inputs = RecordedInputs(rows, self._run["id"], self._plan, self._rows)

    def run(self) -> Replay:
        run = self._run
        view = RunView(run["id"], run["workflow"], run["program_hash"], priority=run["priority"])
        view.tenant, view.deadline = run["tenant"], run.get("deadline")
        view.created = 0 if run.get("parent_run_id") else run["created"]
        entries = [(entry, json.loads(entry["summary"])) for entry in self._history]
        for entry, recorded in entries:
            self._check(entry["revision"], recorded)
        differences: list[Difference] = []
        for entry, recorded in entries:
            try:
                view = self._repeat(view, entry, recorded, differences)
            except Unrecorded as missing:
                if differences:
                    break  # the commits after a difference are those of another run
                raise NotReplayable(run["id"], entry["revision"], str(missing)) from None
        if view.state != run["state"]:
            last = self._history[-1]["revision"]
            differences.append(Difference(last, "state of the run", run["state"], view.state))
        return Replay(run["id"], len(self._history), view.state, view.outputs, differences)

    def _check(self, revision: int, recorded: Mapping[str, Any]) -> None:
        """Raise NotReplayable for a commit with inputs that no export has."""
        problem = ""
        if "ended" in recorded:
            problem = "its history was written by a version before 0.2"
        elif revision == 1 and (source := self._run.get("forked_from")):
            problem = (
                f"it is a fork, and the steps that it took over from run {source} are not stored "
                f"as they were: export and replay run {source}"
            )
        elif self._inputs.moves_to_another_program(recorded):
            problem = (
                "it was retried with another program, and only the last program is stored: export "
                "a run before you retry it with another program"
            )
        if problem:
            raise NotReplayable(self._run["id"], revision, problem)

    def _repeat(
        self,
        view: RunView,
        entry: Mapping[str, Any],
        recorded: Mapping[str, Any],
        differences: list[Difference],
    ) -> RunView:
        """Evaluate the inputs of one commit again; return the run after it."""
        if "Queued" in recorded["happened"]:  # nothing was evaluated: another run has its key
            view.state = RunState.QUEUED
            return view
        triggers = list(self._inputs.of(recorded))
        reused = dict(self._inputs.reused(recorded, entry["at"]))
        self._rows.add(self._inputs.calls_in_place(entry["at"]))
        view, changes = self._rows.evaluate(view, triggers, entry["at"], reused)
        about = (self._rows.steps, view.state, view.generation)
        replayed = history.summary(triggers, changes, *about)
        for what in ("state", "steps", "tasks", "retries"):
            if _unordered(recorded.get(what)) != _unordered(replayed.get(what)):
                differences.append(
                    Difference(entry["revision"], what, recorded.get(what), replayed.get(what))
                )
        self._rows.apply(changes)
        for trigger in triggers:
            if isinstance(trigger, Report) and isinstance(trigger.outcome, Succeeded):
                self._rows.results[trigger.step_key] = dict(trigger.outcome.result)
        self._inputs.follow(changes, has_ended=view.state in RunState.FINAL)
        return view


def _unordered(found: Any) -> Any:
    """Return a part of a summary without the order of its steps, which no decision depends on."""
    if isinstance(found, dict):
        return {state: sorted(names) for state, names in found.items()}
    return sorted(map(list, found)) if isinstance(found, list) else found
