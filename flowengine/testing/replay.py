"""Replay: evaluate an exported run again, commit by commit, and compare.

The evaluator is pure, so the same inputs at the same times must lead to the same transitions. A
difference is a change of the engine that would change running workflows, or a defect.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flowengine.engine import history
from flowengine.evaluator import Missing, RunView, Snapshot, Step, TaskDefinition, evaluate
from flowengine.evaluator.records import CachedResult, IterationChanges
from flowengine.evaluator.states import StepState
from flowengine.evaluator.triggers import (
    Action,
    Answer,
    CancelChildren,
    Expand,
    Failed,
    Lost,
    Outcome,
    Report,
    Started,
    StepContinue,
    StepFail,
    Succeeded,
    TimerFired,
    Trigger,
)
from flowengine.program import link_program, parse_program
from flowengine.program.limits import DEFAULT_LIMITS, Limits
from flowengine.program.standard import RESULT, WAIT_FOR
from flowengine.store import codec
from flowengine.store.records import STEP_COLUMNS, step_from


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
    """
    document = source if isinstance(source, Mapping) else json.loads(Path(source).read_text())
    if document.get("format") != "flowengine.run/1":
        raise ValueError("this is not the export of a run: see `flowengine export`")
    return _Replayed(document).run()


class _AllRows(dict[str, "Step | None"]):
    """The rows so far: every key is present, and maps to None without a row."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> None:
        return None


class _Replayed:
    def __init__(self, document: Mapping[str, Any]) -> None:
        rows = document["rows"]
        self._run = _records(rows["flowengine_run"])[0]
        self._history = sorted(
            _records(rows["flowengine_history"]), key=lambda entry: entry["revision"]
        )
        program = json.loads(_records(rows["flowengine_program"])[0]["body"])
        limits = Limits(**{**asdict(DEFAULT_LIMITS), **document.get("limits", {})})
        self._plan = link_program(
            parse_program(program, limits), allow_scripts=True, is_stored=True, limits=limits
        )
        self._snapshot = Snapshot(_AllRows())
        for payload in _records(rows.get("flowengine_payload")):
            self._snapshot.payloads[payload["hash"]] = codec.load(payload["body"])
        self._steps = [_step(row) for row in _records(rows.get("flowengine_step"))]
        self._tries: defaultdict[tuple[str, int, int], deque[Mapping[str, Any]]] = defaultdict(
            deque
        )
        for task in sorted(_records(rows.get("flowengine_task")), key=lambda t: t["position"]):
            key = (task["step_path"], task["try_number"], task["losses"])
            self._tries[key].append(task)
        self._answered = [
            step
            for step in sorted(self._steps, key=lambda step: step.created)
            if step.facet_name == WAIT_FOR and step.state == StepState.COMPLETE
        ]
        self._facts = sorted(_records(rows.get("flowengine_fact")), key=lambda f: f["created"])

    def run(self) -> Replay:
        run = self._run
        view = RunView(run["id"], run["workflow"], run["program_hash"], priority=run["priority"])
        view.tenant = run["tenant"]
        differences: list[Difference] = []
        for entry in self._history:
            recorded = json.loads(entry["summary"])
            if "ended" in recorded:
                raise ValueError("the history of this run was written by a version before 0.2")
            triggers = list(self._triggers(recorded))
            self._snapshot.cached = dict(self._reused(recorded, entry["at"]))
            before = dict(self._snapshot.steps)
            changes = self._evaluate(view, triggers, entry["at"])
            replayed = history.summary(triggers, changes, before, view.state, view.generation)
            for what in ("state", "steps", "tasks", "retries"):
                if recorded.get(what) != json.loads(json.dumps(replayed.get(what))):
                    differences.append(
                        Difference(entry["revision"], what, recorded.get(what), replayed.get(what))
                    )
            for step in (*changes.created_steps, *changes.updated_steps):
                self._snapshot.steps[step.key] = step
        if view.state != run["state"]:
            last = self._history[-1]["revision"]
            differences.append(Difference(last, "state of the run", run["state"], view.state))
        return Replay(run["id"], len(self._history), view.state, view.outputs, differences)

    def _evaluate(self, view: RunView, triggers: Sequence[Trigger], now: int) -> IterationChanges:
        before = view.copied()
        changes = evaluate(self._plan, view, self._snapshot, triggers, now, prefetched=True)
        if isinstance(changes, Missing) and changes.cached:
            self._snapshot.cached |= dict.fromkeys(changes.cached)  # it had no result of these keys
            for name, value in asdict(before).items():
                if name != "waiter":
                    setattr(view, name, value)
            changes = evaluate(self._plan, view, self._snapshot, triggers, now, prefetched=True)
        if isinstance(changes, Missing):
            missing = ", ".join(sorted(changes.payloads)) or "rows"
            raise ValueError(f"the export lacks values that the run has read: {missing}")
        return changes

    # --- the recorded inputs ---

    def _triggers(self, recorded: Mapping[str, Any]) -> Iterator[Trigger]:
        """Rebuild the inputs of a commit from the rows that it consumed."""
        if "Started" in recorded["happened"]:
            root = next(step for step in self._steps if step.parent is None and step.address)
            yield Started(dict(root.params))
        paths = {step.key: step.path for step in self._steps}
        named = [(name, 1, 0) for name in recorded.get("steps", {}).get("succeeded", ())]
        named += [(row[0], row[1], row[2]) for row in recorded.get("tries", ())]
        reports = []
        for name, number, losses in named:
            path = paths.get(name[1:], name) if name.startswith("#") else name
            reports.append(self._tries[path, number, losses].popleft())
        for task in sorted(reports, key=lambda task: task["position"]):
            yield Report(_task(task, self._run["id"]), _outcome(task))
        refused = recorded.get("refused", {})
        for act_id, kind, subject, actor, _, at in recorded.get("acts", ()):
            fact = self._act(act_id, "Answer" if kind == "answer" else "Action")
            if fact is not None:
                yield fact
            elif act_id not in refused:  # a refused one has changed nothing
                yield Answer(act_id, subject, self._answer(subject), actor, at)
        for name, step_key in recorded.get("inputs", ()):
            if name != CancelChildren.__name__:  # it changes other runs alone
                yield self._input(name, step_key)

    def _reused(
        self, recorded: Mapping[str, Any], now: int
    ) -> Iterator[tuple[str, CachedResult | None]]:
        """Rebuild the results of the cache that a commit used, from the steps that have them."""
        by_name = {name: step for step in self._steps for name in (step.path, f"#{step.key}")}
        for name, run, source, at, key in recorded.get("reused", ()):
            step = by_name[name]
            fields = [field.name for field in self._plan.facets[step.facet_name].returns]
            returns = {field: step.returns[field] for field in fields if field in step.returns}
            about = (key, key, "", step.facet_name, run, source, returns)
            yield key, CachedResult(*about, created=at, expires=now + 1)

    def _act(self, act_id: str, kind: str) -> Trigger | None:
        """Return the answer or action of a fact; None if it was committed without one."""
        for fact in self._facts:
            if fact["kind"] == kind:
                body = codec.load(fact["payload"])
                if body["id"] == act_id:
                    return Action(**body) if kind == "Action" else Answer(**body)
        return None

    def _answer(self, name: str) -> Any:
        """Return an answer that was committed with its end: the result of the step that waited."""
        for place, step in enumerate(self._answered):
            if step.params.get("name") == name:
                del self._answered[place]
                return step.returns.get(RESULT)
        raise ValueError(f"the export has no answer {name!r}")

    def _input(self, name: str, step_key: str) -> Trigger:
        if name == "Expand":
            return Expand(step_key)
        kinds = (name, {"StepContinue": "ChildCompleted", "StepFail": "ChildFailed"}.get(name))
        for place, fact in enumerate(self._facts):
            body = codec.load(fact["payload"])
            if fact["kind"] in kinds and body.get("step_key") == step_key:
                del self._facts[place]
                if name == "TimerFired":
                    return TimerFired(body["step_id"], step_key, body.get("kind", ""))
                if name == "StepFail":
                    return StepFail(body["step_id"], step_key, body["error"])
                outputs = body["outputs"] if fact["kind"] == "ChildCompleted" else None
                result = codec.attributes(outputs) if outputs is not None else body["result"]
                return StepContinue(body["step_id"], step_key, result)
        raise ValueError(f"the export has no fact {name} for the step {step_key}")


def _records(table: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if table is None:
        return []
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def _step(row: Mapping[str, Any]) -> Step:
    return step_from([row[name] for name in STEP_COLUMNS])


def _task(row: Mapping[str, Any], run_id: str) -> TaskDefinition:
    task = TaskDefinition(row["uuid"], row["name"], "", run_id, "", row["step_id"])
    task.step_key, task.step_path = row["step_key"], row["step_path"]
    task.try_number, task.losses = row["try_number"], row["losses"]
    return task


def _outcome(row: Mapping[str, Any]) -> Outcome:
    if row["outcome"] == "succeeded":
        return Succeeded(codec.attributes(row["result"]))
    error = codec.load(row["error"])
    if row["outcome"] == "lost":
        return Lost(error["message"])
    return Failed(error, retry=row["outcome"] == "failed")
