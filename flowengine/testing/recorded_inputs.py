"""The inputs of an exported run, rebuilt from the rows that its commits consumed.

The history names the inputs of each commit; tasks, facts and steps have their values. A retry
leaves several rows of one step: an input belongs to the row that the run had at its commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from flowengine.evaluator import Step, TaskDefinition, cancellation
from flowengine.evaluator.activation_reports import from_json
from flowengine.evaluator.records import CachedResult, IterationChanges
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.evaluator.triggers import (
    Action,
    Answer,
    CancelChildren,
    CancelSteps,
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
from flowengine.program.plan import Plan
from flowengine.program.standard import RESULT, WAIT_FOR, WAITS
from flowengine.store import codec
from flowengine.store.endings import ACTIVATED
from flowengine.store.records import STEP_COLUMNS, step_from
from flowengine.testing.recorded_activations import Unrecorded as Unrecorded
from flowengine.testing.recorded_activations import ran_ahead

Record = Mapping[str, Any]  #: a row of the export, by column
#: Outcomes of tries that reach the evaluator.
_REPORTED = ("succeeded", "failed", "final", "lost", ACTIVATED)


class Rows(Protocol):
    """The rows of the run before the commit whose inputs are rebuilt."""

    @property
    def steps(self) -> Mapping[str, Step | None]: ...


class RecordedInputs:
    def __init__(self, rows: Mapping[str, Any], run_id: str, plan: Plan, before: Rows) -> None:
        self._run_id, self._plan, self._before = run_id, plan, before
        steps = [_step(row) for row in records(rows.get("flowengine_step"))]
        self._steps = sorted(steps, key=lambda step: (step.generation, step.created))
        self._tries: defaultdict[tuple[str, int, int], list[Record]] = defaultdict(list)
        for task in sorted(records(rows.get("flowengine_task")), key=lambda t: t["position"]):
            if task["outcome"] in _REPORTED:
                key = (task["step_path"], task["try_number"], task["losses"])
                self._tries[key].append(task)
        self._answered = [
            step
            for step in self._steps
            if step.facet_name == WAIT_FOR and step.state == StepState.COMPLETE
        ]
        tried = {task["step_id"] for task in records(rows.get("flowengine_task"))}
        self._in_place = [
            step
            for step in self._steps
            if step.object_type == ObjectType.FUNCTION_CALL
            and step.id not in tried
            and step.facet_name not in WAITS
            # A failure in place is part of the report of its activation, whose commit numbers it.
            and step.state == StepState.COMPLETE
            and not step.item_count
        ]
        facts = sorted(records(rows.get("flowengine_fact")), key=lambda fact: fact["created"])
        self._facts = [(fact["kind"], codec.load(fact["payload"])) for fact in facts]
        self._acts = {
            body["id"]: Action(**body) if kind == "Action" else Answer(**body)
            for kind, body in self._facts
            if kind in ("Action", "Answer") and "id" in body  # others are for the log
        }
        self._open_steps: list[CancelSteps] = []  #: follow-ups of the commits so far

    def of(self, recorded: Record) -> Iterator[Trigger]:
        """Yield the inputs of a commit."""
        happened = list(recorded["happened"])
        if "Started" in happened:
            yield self._start()
        yield from self._reports(recorded)
        if "ahead" in recorded:
            generation = recorded.get("generation", 0)
            known = {step.key: step for step in self._steps if step.generation <= generation}
            yield from ran_ahead(recorded, known)
        facts = [*self._interventions(recorded), *self._others(recorded)]
        # An action is evaluated before or behind the inputs of another kind.
        yield from sorted(facts, key=lambda trigger: happened.index(type(trigger).__name__))

    def follow(self, changes: IterationChanges, *, has_ended: bool) -> None:
        """Keep the follow-ups of a commit: they are inputs of a later one."""
        for later in changes.follow_ups:
            if later.kind == cancellation.OPEN_STEPS:
                self._open_steps.append(CancelSteps(str(later.payload["after"])))
        if has_ended:
            self._open_steps.clear()  # they came too late

    def moves_to_another_program(self, recorded: Record) -> bool:
        """Whether a commit has an action after which the run has another program."""
        refused = recorded.get("refused", {})
        acts = [self._acts.get(row[0]) for row in recorded.get("acts", ()) if row[0] not in refused]
        return any(isinstance(act, Action) and "program" in act.options for act in acts)

    def reused(self, recorded: Record, now: int) -> Iterator[tuple[str, CachedResult | None]]:
        """Rebuild the results of the cache that a commit used, from the steps that have them."""
        generation = recorded.get("generation", 0)
        by_name = {
            name: step
            for step in self._steps
            for name in (step.path, f"#{step.key}")
            if step.generation <= generation
        }
        for name, run, source, at, key in recorded.get("reused", ()):
            if (step := by_name.get(name)) is None:
                raise Unrecorded(f"the export lacks the step {name}")
            fields = [field.name for field in self._plan.facets[step.facet_name].returns]
            returns = {field: step.returns[field] for field in fields if field in step.returns}
            about = (key, key, "", step.facet_name, run, source, returns)
            yield key, CachedResult(*about, created=at, expires=now + 1)

    def calls_in_place(self, now: int) -> list[Step]:
        """Return the calls that activations recorded themselves up to a time, in no commit."""
        made = [call for call in self._in_place if call.created <= now]
        self._in_place = [call for call in self._in_place if call.created > now]
        return made

    # --- by kind ---

    def _start(self) -> Started:
        for kind, body in self._facts:
            if kind == "Started":  # of a run that was queued
                return Started(body["inputs"])
        for step in self._steps:
            if step.parent is None and step.address:
                return Started(dict(step.params))
        raise Unrecorded("the export lacks the inputs of the run")

    def _reports(self, recorded: Record) -> list[Report]:
        paths = {step.key: step.path for step in self._steps}
        succeeded = recorded.get("steps", {}).get("succeeded", ())
        named = [(name, 1, 0, "succeeded") for name in succeeded]
        named += [tuple(row[:4]) for row in recorded.get("tries", ())]
        found = []
        for name, number, losses, outcome in named:
            path = paths.get(name[1:], name) if name.startswith("#") else name
            found.append(self._try((path, number, losses), outcome))
        found.sort(key=lambda task: task["position"])
        return [Report(_task(task, self._run_id), _outcome(task)) for task in found]

    def _try(self, key: tuple[str, int, int], outcome: str) -> Record:
        tries = self._tries[key]
        if not tries:
            raise Unrecorded(f"the export lacks try {key[1]} of the step {key[0]}")

        def fits(task: Record) -> tuple[bool, bool]:
            is_current = self._is_current(task["step_key"], task["step_id"])
            return is_current, task["outcome"] == outcome

        return tries.pop(tries.index(max(tries, key=fits)))  # the first of several that fit

    def _interventions(self, recorded: Record) -> Iterator[Trigger]:
        refused = recorded.get("refused", {})
        for act_id, kind, subject, actor, _, at in recorded.get("acts", ()):
            if (act := self._acts.get(act_id)) is not None:
                yield act
            elif act_id in refused:
                continue  # it has changed nothing
            elif kind == "answer":
                yield Answer(act_id, subject, self._answer(subject), actor, at)
            else:
                raise Unrecorded(f"the export lacks the options of the action {kind!r}")

    def _answer(self, name: str) -> Any:
        """Return an answer that was committed with its end: the result of the step that waited."""
        steps = [step for step in self._answered if step.params.get("name") == name]
        if not steps:
            raise Unrecorded(f"the export lacks the answer {name!r}")
        step = max(steps, key=lambda step: self._is_current(step.key, step.id))
        self._answered.remove(step)
        return step.returns.get(RESULT)

    def _others(self, recorded: Record) -> Iterator[Trigger]:
        for name, step_key in recorded.get("inputs", ()):
            if name == CancelSteps.__name__:
                if not self._open_steps:
                    raise Unrecorded("no commit before it has begun a cancellation")
                yield self._open_steps.pop()
            elif name != CancelChildren.__name__:  # it changes other runs alone
                yield Expand(step_key) if name == "Expand" else self._fact(name, step_key)

    def _fact(self, name: str, step_key: str) -> Trigger:
        kinds = (name, {"StepContinue": "ChildCompleted", "StepFail": "ChildFailed"}.get(name))
        facts = [
            (place, kind, body)
            for place, (kind, body) in enumerate(self._facts)
            if kind in kinds and body.get("step_key") == step_key
        ]
        if not facts:
            raise Unrecorded(f"the export lacks the fact {name} of the step {step_key}")
        place, kind, body = max(facts, key=lambda f: self._is_current(step_key, f[2]["step_id"]))
        del self._facts[place]
        if name == "TimerFired":
            return TimerFired(body["step_id"], step_key, body.get("kind", ""))
        if name == "StepFail":
            return StepFail(body["step_id"], step_key, body["error"])
        is_child = kind == "ChildCompleted"
        result = codec.attributes(body["outputs"]) if is_child else body["result"]
        return StepContinue(body["step_id"], step_key, result)

    def _is_current(self, key: str, step_id: str) -> bool:
        """Whether the run has this row of a step, not an earlier or a later one."""
        step = self._before.steps[key]
        return step is not None and step.id == step_id


def records(table: Mapping[str, Sequence[Any]] | None) -> list[dict[str, Any]]:
    """Return the rows of a table of the export."""
    if table is None:
        return []
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def _step(row: Record) -> Step:
    return step_from([row[name] for name in STEP_COLUMNS])


def _task(row: Record, run_id: str) -> TaskDefinition:
    task = TaskDefinition(row["uuid"], row["name"], "", run_id, "", row["step_id"])
    task.step_key, task.step_path = row["step_key"], row["step_path"]
    task.try_number, task.losses = row["try_number"], row["losses"]
    task.created = row["created"]
    return task


def _outcome(row: Record) -> Outcome:
    if row["outcome"] == "succeeded":
        return Succeeded(codec.attributes(row["result"]))
    error = codec.load(row["error"])
    if row["outcome"] == ACTIVATED:
        return from_json(codec.load(row["result"]))
    if row["outcome"] == "lost":
        return Lost(error["message"])
    return Failed(error, retry=row["outcome"] == "failed")
