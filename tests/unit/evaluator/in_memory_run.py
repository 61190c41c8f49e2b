"""A run in memory: the smallest engine that can apply the decisions of the evaluator.

Like the engine with a database it loads the rows that the evaluator asks for, commits its
changes and evaluates its follow-ups. Between two commits it keeps only text, in the encoding of
the store, so that anything that the evaluator does not write is lost here. After each commit it
checks the invariants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from flowengine.evaluator import (
    IterationChanges,
    Missing,
    PayloadRef,
    RunState,
    RunView,
    Snapshot,
    Step,
    StepState,
    TaskDefinition,
    TaskState,
    cancellation,
    evaluate,
    generations,
    working_set,
)
from flowengine.evaluator.activation_reports import from_json, to_json
from flowengine.evaluator.outline import outlined
from flowengine.evaluator.records import CachedResult, FollowUp, row_key
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.triggers import (
    Action,
    ActivationEnded,
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
from flowengine.program import link_program, parse_program
from flowengine.program.addresses import RowKind, StepSource
from flowengine.program.limits import DEFAULT_LIMITS
from flowengine.program.plan import FacetPlan, StatementPlan
from flowengine.program.standard import WAITS
from flowengine.store import codec
from flowengine.store.records import STEP_COLUMNS, step_from

_TRIGGERS: dict[str, Callable[..., Trigger]] = {
    "Expand": Expand,
    cancellation.OPEN_STEPS: CancelSteps,
    cancellation.CHILDREN: CancelChildren,
}
Stored = Mapping[str, Any]  #: one row, as text and numbers

#: Answers of event facets: the parameters in, the results out; None leaves it unanswered.
Answer = Callable[[TaskDefinition], Outcome | None]


#: The stage that a step has reached, if it is not its body.
_STAGES = {
    StepState.MIXIN_BLOCKS_CONTINUE: generations.BEGIN,
    StepState.FACET_SCRIPTS_END: generations.BEGIN,
    StepState.ALWAYS_CONTINUE: generations.ALWAYS,
}


class MemoryRun:
    """One run of a program, started."""

    def __init__(
        self,
        document: Mapping[str, Any],
        inputs: Mapping[str, Any] | None = None,
        *,
        workflow: str = "W",
        forgetful: bool = True,
        **limits: int,
    ) -> None:
        self.plan = link_program(
            parse_program(document), allow_scripts=True, limits=replace(DEFAULT_LIMITS, **limits)
        )
        self.now = 0
        self.rows: dict[str, Stored] = {}
        self.payloads: dict[str, str] = {}
        self.tasks: dict[str, TaskDefinition] = {}
        self.events: dict[str, str] = {}
        self.facts: list[FollowUp] = []
        self.superseded: list[Stored] = []
        self.results: dict[str, dict[str, Any] | None] = {}  #: of events, by the key of their step
        self.commits: list[IterationChanges] = []
        self.cached: dict[str, CachedResult] = {}  #: the result cache
        self.trips = 0  #: to the store, for the last commit
        self.repeated_tasks = 0  #: decided although they exist; the store ignores them
        self._view = RunView("run", self.plan.workflow(workflow).name, "hash")
        self._memory = None if forgetful else Snapshot()
        self.consume_inbox(Started(dict(inputs or {})))

    # --- for tests ---

    @property
    def view(self) -> RunView:
        return RunView(**asdict(self._view))

    @property
    def outputs(self) -> dict[str, Any] | None:
        found = self._view.outputs
        return None if found is None else self.whole(found)

    def outstanding(self) -> list[TaskDefinition]:
        """The open tasks, oldest first."""
        return [task for task in self.tasks.values() if task.state in TaskState.OPEN]

    def task(self, path: str) -> TaskDefinition:
        """The last try of the step at that path."""
        return [task for task in self.tasks.values() if task.step_path == path][-1]

    def step(self, path: str) -> Step:
        return self._step(row_key(RowKind.STEP, path))

    def states(self) -> dict[str, str]:
        """The last word of each step's state, by path; blocks left out."""
        found = (self._step(key) for key in self.rows)
        return {
            step.path: step.state.rpartition(".")[2]
            for step in found
            if step.object_type not in ObjectType.BLOCKS
        }

    def succeed(self, path: str, **result: Any) -> IterationChanges:
        return self.report(self.task(path), Succeeded(result))

    def fail(self, path: str, message: str = "broken", *, retry: bool = True) -> IterationChanges:
        return self.report(self.task(path), Failed({"type": "Oops", "message": message}, retry))

    def report(self, task: TaskDefinition, outcome: Outcome) -> IterationChanges:
        """Report an open task, and evaluate all follow-ups."""
        return self.report_all([(task, outcome)])

    def report_all(self, reports: Sequence[tuple[TaskDefinition, Outcome]]) -> IterationChanges:
        """Report several open tasks in one evaluation."""
        for task, outcome in reports:
            has_result = isinstance(outcome, Succeeded | ActivationEnded)
            task.state = TaskState.COMPLETED if has_result else TaskState.FAILED
            if isinstance(outcome, Succeeded):
                self.results[task.step_key] = dict(outcome.result)
        ended = [self.ended(task, outcome) for task, outcome in reports]
        changes = self.consume_inbox(*ended, *self._take_facts())
        self.settle()
        return changes

    def answer_all(self, answer: Answer) -> None:
        """Answer the oldest task first, until none is left that has an answer."""
        unanswered: set[str] = set()
        while True:
            open_tasks = [task for task in self.outstanding() if task.uuid not in unanswered]
            if not open_tasks:
                return
            outcome = answer(open_tasks[0])
            if outcome is None:
                unanswered.add(open_tasks[0].uuid)
            else:
                self.report(open_tasks[0], outcome)

    def settle(self) -> None:
        """Evaluate follow-ups until there are none."""
        while facts := self._take_facts():
            self.consume_inbox(*facts)

    def ended(self, task: TaskDefinition, outcome: Outcome) -> Report:
        """The report of a task, as it is read back from the store."""
        match outcome:
            case Succeeded(result):
                encoder = codec.Encoder()
                text = encoder.attributes(result)
                self.payloads |= encoder.payloads
                outcome = Succeeded(codec.attributes(text))
            case Failed(error, retry):
                outcome = Failed(codec.load(codec.dump(error)), retry)
            case ActivationEnded():
                outcome = from_json(codec.load(codec.dump(to_json(outcome))))
            case Lost():
                pass
        return Report(task, outcome)

    def act(self, kind: str, **details: Any) -> IterationChanges:
        """Apply an action to the run, and evaluate all follow-ups."""
        about = {"actor": "person:eva", "reason": "duplicate", "at": self.now, **details}
        changes = self.consume_inbox(Action(f"{kind}-{self.now}", kind, **about))
        self.settle()
        return changes

    def ask(self, kind: str, **options: Any) -> str:
        """Apply an action with options; return why it is refused, or nothing."""
        changes = self.act(kind, reason="because", options=options)
        return "".join(refusal.reason for refusal in changes.refusals)

    def end_cleanup(self) -> None:
        """Report that the always blocks of a cancelled run have had their time."""
        root = self._step(row_key(RowKind.STEP, self._view.workflow))
        self.consume_inbox(TimerFired(root.id, root.key, cancellation.TIMER))
        self.settle()

    def continued(self, path: str, **result: Any) -> StepContinue:
        step = self.step(path)
        return StepContinue(step.id, step.key, result)

    def failed(self, path: str, message: str) -> StepFail:
        step = self.step(path)
        return StepFail(step.id, step.key, {"type": "StepFailed", "message": message})

    # --- as the engine does ---

    def consume_inbox(self, *triggers: Trigger) -> IterationChanges:
        """Evaluate, commit, and check the invariants. Follow-ups wait for `settle`."""
        self.now += 1
        snapshot = self._memory or Snapshot()
        self.trips = 0
        while True:
            view = self.view
            changes = evaluate(self.plan, view, snapshot, triggers, self.now)
            if not isinstance(changes, Missing):
                break
            wanted = (changes.steps - snapshot.steps.keys()) | (
                changes.payloads - snapshot.payloads.keys()
            )
            wanted |= changes.pages - snapshot.at_event.keys()
            wanted |= changes.results - snapshot.results.keys()
            wanted |= changes.cached - snapshot.cached.keys()
            wanted |= changes.last_calls - snapshot.last_calls.keys()
            is_outlined = changes.outline and snapshot.outline is None
            assert wanted or is_outlined, "the evaluator asks for what it has been given"
            self.trips += 1
            snapshot.steps |= {key: self._find(key) for key in changes.steps}
            bodies = {digest: codec.load(self.payloads[digest]) for digest in changes.payloads}
            snapshot.payloads |= bodies
            snapshot.at_event |= {after: self._at_event(after) for after in changes.pages}
            if changes.outline:
                snapshot.outline = [outlined(self._step(key)) for key in self.rows]
            snapshot.results |= {key: self.results.get(key) for key in changes.results}
            snapshot.cached |= {key: self.cached.get(key) for key in changes.cached}
            snapshot.last_calls |= {key: self._last_call(key) for key in changes.last_calls}
        self._check_untouched(snapshot)
        self._commit(changes, view)
        self._check_laws(changes)
        if self._memory is not None:
            touched = (*changes.created_steps, *changes.updated_steps)
            self._memory.steps |= dict.fromkeys(changes.superseded)
            self._memory.steps |= {step.key: step for step in touched}
            self._memory.at_event.clear()
            self._memory.outline, self._memory.results = None, {}
        return changes

    def _take_facts(self) -> list[Trigger]:
        facts, self.facts = self.facts, []
        return [_TRIGGERS[fact.kind](*fact.payload.values()) for fact in facts]

    def _last_call(self, key: str) -> int | None:
        """When the last call of a durable function was recorded."""
        times = [row["created"] for row in self.rows.values() if row["parent"] == key]
        return max(times, default=None)

    def _at_event(self, after: str) -> list[str]:
        """The next page of steps that wait at their event."""
        rows = sorted(self.rows.items())
        waiting = [key for key, row in rows if row["state"] == StepState.EVENT_TRANSMIT]
        return [key for key in waiting if key > after][: working_set.PAGE]

    def _commit(self, changes: IterationChanges, view: RunView) -> None:
        self.commits.append(changes)
        for key, step_id in changes.superseded.items():
            assert self.rows[key]["id"] == step_id, "another row is superseded"
            self.superseded.append(self.rows.pop(key))
        for step in changes.created_steps:
            assert step.key not in self.rows, f"{step.path} is created twice"
            self.rows[step.key] = self._stored(step)
        for step in changes.updated_steps:
            before, after = self.rows[step.key], self._stored(step)
            if before["state"] in StepState.FINAL:
                same = {**before, "updated": 0} == {**after, "updated": 0}
                assert same, f"the final row {step.path} was changed"
            self.rows[step.key] = after
        for event in changes.created_events:
            assert event.id not in self.events, f"a second event for step {event.step_id}"
            self.events[event.id] = event.state
        for task in changes.created_tasks:
            self.repeated_tasks += task.uuid in self.tasks
            self.tasks.setdefault(task.uuid, task)
            task.data = self.whole(task.data or {})
        for task in self.tasks.values():
            if task.step_id in changes.canceled_steps and task.state in TaskState.OPEN:
                task.state = TaskState.CANCELED
        self.facts += changes.follow_ups
        was_final = self._view.state in RunState.FINAL
        was_final = was_final and view.generation == self._view.generation
        assert not was_final or view == self._view, "a final run was changed"
        self._view = view

    # --- text and back ---

    def _stored(self, step: Step) -> Stored:
        encoder = codec.Encoder()
        stored = {
            **{name: getattr(step, name) for name in _PLAIN},
            "position": step.index,
            "params": encoder.attributes(step.params),
            "returns": encoder.attributes(step.returns),
            "yields": encoder.yields(step.yields),
            "error": codec.dump(step.error) if step.error else None,
            "failure": codec.dump(step.failure) if step.failure else None,
            "heard": codec.dump(step.heard) if step.heard else None,
        }
        self.payloads |= encoder.payloads
        return stored

    def _find(self, key: str) -> Step | None:
        stored = self.rows.get(key)
        return None if stored is None else step_from([stored[name] for name in STEP_COLUMNS])

    def _step(self, key: str) -> Step:
        found = self._find(key)
        assert found is not None, f"no row {key}"
        return found

    def whole(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes with their large values read."""
        text = codec.Encoder().attributes(values)
        found = codec.attributes(text)
        return {
            name: codec.load(self.payloads[value.hash]) if isinstance(value, PayloadRef) else value
            for name, value in found.items()
        }

    def created_items(self, changes: IterationChanges) -> int:
        """How many items of foreachs were begun, with rows of their own or without."""
        above = [self.rows[s.parent] for s in changes.created_steps if s.parent is not None]
        return sum(1 for row in above if row["object_type"] == ObjectType.FAN)

    # --- laws ---

    def _check_untouched(self, snapshot: Snapshot) -> None:
        """The evaluator has not changed its snapshot: it can be called again."""
        for key, step in snapshot.steps.items():
            if step is not None and key in self.rows:
                assert self._stored(step) == self.rows[key], f"{step.path} was changed in place"

    def _check_laws(self, changes: IterationChanges) -> None:
        touched = {step.key for step in (*changes.created_steps, *changes.updated_steps)}
        renewed = len(changes.superseded)  # a retry renews the items that it needs at once
        assert self.created_items(changes) <= working_set.PORTION + renewed
        ended = self._ended_children()
        for key in touched:
            row = self._step(key)
            assert row.waiting >= 0, f"{row.path} waits for {row.waiting} steps"
            if row.state == StepState.CREATED:
                assert row.waiting == self._awaited(row), f"what {row.path} waits for"
            elif row.object_type == ObjectType.FUNCTION_CALL:
                assert row.waiting == 0
            elif not row.is_final and row.object_type in ObjectType.STEPS:
                open_before = self._open_before(row) if self._is_taken_over(row) else 0
                assert row.waiting == open_before, f"{row.path} goes on too early"
            assert row.remaining == self._unfinished(row, ended), f"the counter of {row.path}"
            if row.is_final and row.object_type in (ObjectType.BLOCK, ObjectType.ITEM):
                assert self._is_whole(row), f"{row.path} has ended without some of its steps"
            if row.is_limited:
                under_way = row.next_index - row.item_count + row.remaining
                assert under_way <= row.params["limit"], f"items of {row.path} under way"
        at_event = sum(1 for r in self.rows.values() if r["state"] == StepState.EVENT_TRANSMIT)
        assert self._view.open_steps == at_event
        running = Counter(task.step_id for task in self.outstanding())
        waits = sum(
            1
            for r in self.rows.values()
            if r["state"] == StepState.EVENT_TRANSMIT and r["facet_name"] in WAITS
        )
        assert len(running) == at_event - waits, "a step waits at its event without an open task"
        assert all(count == 1 for count in running.values()), "two open tries of one step"
        is_over = self._view.state in RunState.FINAL
        assert is_over or at_event or self.facts, "nothing is outstanding, and the run not over"
        # An action may be taken in before a follow-up of an earlier commit.
        assert self._view.alarm is None or self.facts
        if is_over:
            unfinished = [
                r["path"] for r in self.rows.values() if r["state"] not in StepState.FINAL
            ]
            assert not unfinished, f"the run is over, but not {unfinished}"
        if self._view.state == RunState.COMPLETED:
            unexcused = [row["path"] for row in self.rows.values() if not self._is_excused(row)]
            assert not unexcused, f"the run completed, but not {unexcused}"

    def _is_whole(self, row: Step) -> bool:
        """Whether a block that began has a row for each of its statements."""
        begun = {r["address"] for r in self.rows.values() if r["parent"] == row.key}
        statements = self.plan.blocks[row.address].statements
        return not begun or begun == {statement.address for statement in statements}

    def _is_excused(self, row: Stored) -> bool:
        """Whether a row may be what it is in a run that completed."""
        if row["state"] == StepState.COMPLETE:
            return True
        if row["object_type"] == ObjectType.CASE and row["error"] is None:
            return row["state"] == StepState.SKIPPED  # not taken
        if row["state"] == StepState.SKIPPED and "SkippedByHand" in row["error"]:
            return True
        if row["object_type"] == ObjectType.FUNCTION_CALL:
            return True  # its function was told
        while row["parent"] is not None:
            row = self.rows[row["parent"]]
            if row["object_type"] == ObjectType.FAN:
                foreach = self.plan.blocks[row["address"]].foreach
                assert foreach is not None
                if foreach.collects_errors:
                    return True
            if row["object_type"] in ObjectType.HANDLING and row["next_index"]:
                return True  # caught, further in or here
        return False

    def _ended_children(self) -> Counter[str | None]:
        """How many children of each row have ended."""
        return Counter(
            row["parent"] for row in self.rows.values() if row["state"] in StepState.FINAL
        )

    def _awaited(self, row: Step) -> int:
        """How many steps must end before a row can begin, counted anew."""
        if row.object_type == ObjectType.FAN:
            foreach = self.plan.blocks[row.address].foreach
            assert foreach is not None
            scope, sources = row.parent, {*foreach.needs, *foreach.awaits}
        elif row.object_type == ObjectType.WHEN:
            choice = self.plan.blocks[row.address].choice
            assert choice is not None
            scope, sources = row.parent, {*choice.needs}
        elif row.object_type in ObjectType.BLOCKS or row.parent is None:
            return 0
        elif row.object_type == ObjectType.FUNCTION_CALL:
            assert self._is_postponed(row)
            return 0
        else:
            plan = self.plan.statements[row.address]
            scope, sources = row.parent, {*plan.needs, *plan.awaits}
            if plan.is_lazy:
                sources = set()  # renewed: it begins, without a count, when that step has ended
        assert scope is not None
        outer = self._step(scope)
        if row.object_type in ObjectType.BLOCKS:  # the end of a kept step is not told to it again
            count = sum(1 for source in sources if not self._is_final(outer, source))
        else:
            # A renewed block tells its steps the ends of kept ones when it goes on.
            is_ahead = outer.object_type in ObjectType.BLOCKS and outer.state == StepState.CREATED
            count = sum(
                1 for s in sources if not self._has_ended(outer, s) or (is_ahead and s.hops == 0)
            )
        assert count or self._is_postponed(row), f"{row.path} waits for nothing and has not begun"
        return count

    def _unfinished(self, row: Step, ended: Counter[str | None]) -> int:
        """How many children have not ended, counted anew from the program and the rows."""
        if row.activation and row.state in (StepState.EVENT_TRANSMIT, StepState.SUSPENDED):
            below = [r for r in self.rows.values() if r["parent"] == row.key]
            return sum(1 for r in below if r["state"] not in StepState.FINAL)
        if row.is_final or row.state in (StepState.CREATED, StepState.EVENT_TRANSMIT):
            return 0
        if row.state in (StepState.BLOCKS_BEGIN, StepState.CATCH_BEGIN, StepState.ALWAYS_BEGIN):
            assert self._is_postponed(row)
            return 0  # it counts them when it creates them
        if row.object_type == ObjectType.FAN:
            # A renewed foreach counts the items of earlier generations when it gets there.
            behind = ended[row.key] and sum(
                1
                for r in self.rows.values()
                if r["parent"] == row.key
                and r["position"] >= row.next_index
                and r["state"] in StepState.FINAL
            )
            return row.item_count - ended[row.key] + behind
        begun = Counter(r["parent"] for r in self.rows.values())[row.key] - self._ahead(row)
        is_preparing = row.state in (StepState.MIXIN_BLOCKS_CONTINUE, StepState.FACET_SCRIPTS_END)
        if row.object_type == ObjectType.WHEN or is_preparing or row.state in StepState.HANDLING:
            return begun - ended[row.key]
        if row.object_type in ObjectType.BLOCKS:
            block = self.plan.blocks[row.address]
            captured = sum(1 for source in block.captures if not self._has_ended(row, source))
            return begun - ended[row.key] - self._not_taken_over(row) + captured
        plan: FacetPlan | StatementPlan = (
            self.plan.facets[row.address]
            if row.object_type == ObjectType.WORKFLOW
            else self.plan.statements[row.address]
        )
        before = len(plan.mixins) + (plan.pre_script is not None)
        assert begun == before + len(plan.body) or self._is_postponed(row)
        return begun - ended[row.key]

    def _ahead(self, step: Step) -> int:
        """How many renewed blocks of a step belong to a stage that it has not reached again."""
        if step.object_type in ObjectType.BLOCKS or step.generation != self._view.generation:
            return 0
        below = [self._step(r["key"]) for r in self.rows.values() if r["parent"] == step.key]
        stage = _STAGES.get(step.state, generations.BODY)
        if step.state == StepState.CATCH_CONTINUE:
            stage = generations.CATCH + step.next_index - 1
        return sum(
            1
            for row in below
            if not row.is_final
            and generations.stage_of(self.plan, outlined(step), outlined(row)) > stage
        )

    def _not_taken_over(self, block: Step) -> int:
        """How many renewed steps of a block are not counted by it yet."""
        below = [r for r in self.rows.values() if r["parent"] == block.key]
        steps = [self._step(r["key"]) for r in below if r["object_type"] in ObjectType.STEPS]
        return sum(1 for step in steps if not step.is_final and not self._is_taken_over(step))

    def _is_postponed(self, row: Step) -> bool:
        """Whether the row goes on with the next commit, because the last one was full."""
        if self._view.generation and row.generation == self._view.generation:
            return True  # a renewed row goes on when the rows above it get there
        return any(fact.payload.get("step_key") == row.key for fact in self.facts)

    def _source(self, row: Step, source: StepSource) -> Step | None:
        for _ in range(source.hops):
            assert row.parent is not None
            row = self._step(row.parent)
        key = row.key if source.suffix is None else row_key(RowKind.STEP, row.path + source.suffix)
        return self._find(key)

    def _is_final(self, row: Step, source: StepSource) -> bool:
        found = self._source(row, source)
        return found is not None and found.is_final

    def _has_ended(self, row: Step, source: StepSource) -> bool:
        """Whether the end of a step is counted by those that wait for it."""
        found = self._source(row, source)
        if found is None or not found.is_final:
            return False
        return source.hops > 0 or source.suffix is None or self._is_taken_over(found)

    def _is_taken_over(self, row: Step) -> bool:
        """Whether the end of a row is counted: a step before it may be retried while it is kept.

        A step that is created by the end of another is taken over when that one ends again.
        """
        statement = self.plan.statements[row.address]
        if not statement.is_lazy or row.parent is None:
            return True
        before = statement.needs + statement.awaits
        return all(self._has_ended(self._step(row.parent), source) for source in before)

    def _open_before(self, row: Step) -> int:
        """How many of the steps that come before a row have not ended."""
        plan = self.plan.statements[row.address]
        assert row.parent is not None
        outer, sources = self._step(row.parent), {*plan.needs, *plan.awaits}
        if outer.object_type == ObjectType.FAN:
            return 0
        return sum(1 for source in sources if not self._is_final(outer, source))


_PLAIN = (
    *("id", "run_id", "key", "path", "object_type", "address", "parent", "generation"),
    *("facet_name", "state", "waiting", "remaining", "item_count", "next_index"),
    *("created", "updated", "digest", "activation"),
)


def comparable(run: MemoryRun) -> dict[str, Any]:
    """All that must not depend on the order in time.

    Times differ, and so does the reason of a step skipped for two failures: it names the one
    that came first.
    """
    rows = {}
    for key in run.rows:
        row = run._step(key)
        is_error = row.state == StepState.ERROR
        rows[f"{row.object_type} {row.path}"] = {
            "state": row.state,
            "params": run.whole(row.params),
            "returns": run.whole(row.returns),
            "yields": [(levels, run.whole(values)) for levels, values in row.yields],
            "error": row.error if is_error else None,
            "items": (row.item_count, row.next_index),
            "counters": None if row.is_final else (row.waiting, row.remaining),
        }
    view = run.view
    return {"state": view.state, "outputs": run.outputs, "error": view.error, "rows": rows}
