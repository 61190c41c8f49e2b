"""The rows of a commit, gathered section by section and written together.

Several runs may be decided in one commit. PostgreSQL writes all sections in one statement
(`one_statement`), SQLite one after the other; what a row of each section looks like is said
here, once for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowengine.evaluator import EventDefinition, RunView, Step, TaskDefinition, TaskState
from flowengine.evaluator.records import FollowUp, Waiter, id_within
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Failed, HandedOver, Lost, Outcome, Succeeded
from flowengine.store import codec
from flowengine.store.claims import WorkerIdentity
from flowengine.store.tasks import limit_key

Rows = list[dict[str, Any]]

#: Sections and columns in which None does not mean nothing, but: as it is stored.
KEPT_WHEN_NOT_GIVEN = {("steps", "params")}


@dataclass(slots=True)
class RunHeader:
    """The part of a run's row that an evaluation reads and writes."""

    view: RunView
    revision: int  #: commits so far
    task_count: int  #: tasks so far


@dataclass
class CommitRows:
    """What is written together, or not at all; each run's part stands or falls by itself."""

    new_runs: Rows = field(default_factory=list)
    runs: Rows = field(default_factory=list)
    history: Rows = field(default_factory=list)
    reports: Rows = field(default_factory=list)
    new_steps: Rows = field(default_factory=list)
    steps: Rows = field(default_factory=list)
    new_events: Rows = field(default_factory=list)
    joins: Rows = field(default_factory=list)
    new_tasks: Rows = field(default_factory=list)
    taken_tasks: Rows = field(default_factory=list)
    facts: Rows = field(default_factory=list)
    taken_facts: Rows = field(default_factory=list)
    parent_facts: Rows = field(default_factory=list)  #: facts for other runs
    payloads: Rows = field(default_factory=list)
    encoder: codec.Encoder = field(default_factory=codec.Encoder)
    _gathered: set[tuple[str, str]] = field(default_factory=set)

    def gather_payloads(self, run_id: str, now: int) -> None:
        """Note which large values were met since the last time: they belong to this run's part."""
        for digest, body in self.encoder.payloads.items():
            if (run_id, digest) not in self._gathered:
                self._gathered.add((run_id, digest))
                self.payloads.append(
                    {"run_id": run_id, "hash": digest, "body": body, "created": now}
                )
        self.encoder.payloads = {}

    # --- runs ---

    def save_run(
        self, head: RunHeader, view: RunView, summary: Mapping[str, Any], now: int, *, tasks: int
    ) -> RunHeader:
        """Write what was decided about a run itself; return its head after the commit."""
        after = RunHeader(view, head.revision + 1, head.task_count + tasks)
        is_final = view.state in RunState.FINAL
        outputs = None
        if view.outputs is not None:
            outputs = self.encoder.attributes(view.outputs) or "{}"
        self.runs.append(
            {
                "run_id": view.id,
                "was": head.revision,
                "reports": 0,
                "revision": after.revision,
                "state": view.state,
                "generation": view.generation,
                "open_steps": view.open_steps,
                "task_count": after.task_count,
                "outputs": outputs,
                "error": codec.dump(view.error) if view.error else None,
                "alarm": view.alarm,
                "updated": now,
                "finished": now if is_final else None,
            }
        )
        self.history.append(
            {
                "run_id": view.id,
                "revision": after.revision,
                "at": now,
                "summary": codec.dump(summary),
            }
        )
        return after

    # --- steps and events ---

    def add_steps(
        self,
        created: Iterable[Step],
        updated: Iterable[Step],
        stored: Mapping[str, Step | None],
    ) -> None:
        """Write new steps, and changed ones over those that are stored under their keys."""
        for step in created:
            self.new_steps.append(
                {
                    "run_id": step.run_id,
                    "id": step.id,
                    "key": step.key,
                    "generation": step.generation,
                    "path": step.path,
                    "object_type": step.object_type,
                    "address": step.address,
                    "facet_name": step.facet_name,
                    "parent": step.parent,
                    "position": step.index,
                    "created": step.created,
                    "params": self.encoder.attributes(step.params),
                    **self._mutable(step),
                }
            )
        for step in updated:
            before = stored.get(step.key)
            # Parameters are large at times, and hardly ever change. None: as they are.
            is_same = before is not None and before.params is step.params
            params = None if is_same else self.encoder.attributes(step.params) or "{}"
            self.steps.append(
                {"run_id": step.run_id, "id": step.id, "params": params, **self._mutable(step)}
            )

    def _mutable(self, step: Step) -> dict[str, Any]:
        encoder = self.encoder
        return {
            "state": step.state,
            "returns": encoder.attributes(step.returns),
            "error": codec.dump(step.error) if step.error else None,
            "waiting": step.waiting,
            "remaining": step.remaining,
            "item_count": step.item_count,
            "next_index": step.next_index,
            "failure": codec.dump(step.failure) if step.failure else None,
            "yields": encoder.yields(step.yields),
            "updated": step.updated,
        }

    def add_events(self, created: Iterable[EventDefinition], now: int) -> None:
        for event in created:
            self.new_events.append(
                {
                    "run_id": event.workflow_id,
                    "id": event.id,
                    "step_id": event.step_id,
                    "event_type": event.event_type,
                    "created": now,
                }
            )

    # --- tasks ---

    def add_tasks(self, created: Sequence[TaskDefinition], first: int) -> None:
        """Insert new tries, numbered from `first` in the order of their creation.

        One that is claimed already (`claimed_by`) is born running.
        """
        for offset, task in enumerate(created):
            is_running = task.state == TaskState.RUNNING
            since = task.updated if is_running else None
            task.position = first + offset
            self.new_tasks.append(
                {
                    "run_id": task.workflow_id,
                    "uuid": task.uuid,
                    "step_id": task.step_id,
                    "step_key": task.step_key,
                    "step_path": task.step_path,
                    "program_hash": task.flow_id,
                    "name": task.name,
                    "short_name": task.name.rpartition(".")[2],
                    "task_list_name": task.task_list_name,
                    "data_type": task.data_type,
                    "position": task.position,
                    "try_number": task.try_number,
                    "losses": task.losses,
                    "lease": task.lease,
                    "state": task.state,
                    "rank": -task.priority,
                    "due": task.due,
                    "timeout_ms": task.timeout_ms,
                    "runs_once": task.runs_once,
                    "limit_key": limit_key(task.circuit),
                    "started": since,
                    "activity": since,
                    "server_id": task.runner_id or None,
                    "boot_id": task.boot_id or None,
                    "pid": task.pid,
                    "join_id": task.join_id,
                    "created": task.created,
                    "updated": task.updated,
                }
            )

    def add_report(self, task: TaskDefinition, outcome: Outcome, now: int) -> None:
        """End a try, if it is still held; it is taken in with this commit."""
        self.reports.append(
            {
                "run_id": task.workflow_id,
                "uuid": task.uuid,
                "lease": task.lease,
                "updated": now,
                **reported_as(outcome, self.encoder),
            }
        )

    def consume_inbox(self, run_id: str, task_ids: Iterable[str], fact_ids: Iterable[str]) -> None:
        """Note that these were evaluated."""
        self.taken_tasks += [{"run_id": run_id, "uuid": task_id} for task_id in task_ids]
        self.taken_facts += [{"run_id": run_id, "id": fact_id} for fact_id in fact_ids]

    def add_joins(self, run_id: str, counts: Mapping[str, int], now: int) -> None:
        """Count so many tasks more in each of these joins."""
        self.joins += [
            {"run_id": run_id, "id": join_id, "remaining": count, "updated": now}
            for join_id, count in sorted(counts.items())
        ]

    def add_follow_ups(
        self, run_id: str, revision: int, follow_ups: Iterable[FollowUp], now: int
    ) -> None:
        self.facts += [
            {
                "run_id": run_id,
                "id": id_within(run_id, revision, number),
                "kind": follow_up.kind,
                "payload": codec.dump(follow_up.payload),
                "created": now,
            }
            for number, follow_up in enumerate(follow_ups)
        ]

    def add_parent_fact(self, view: RunView, waiter: Waiter, now: int) -> None:
        """Tell the step that waits for this run how it ended."""
        told: dict[str, Any] = {"step_id": waiter.step_id, "step_key": waiter.step_key}
        if view.state == RunState.COMPLETED:
            answer = {"run": view.id, **(view.outputs or {})}
            kind, told["outputs"] = "ChildCompleted", self.encoder.attributes(answer)
        else:
            error = view.error or {"type": view.state, "message": "the run did not complete"}
            kind, told["error"] = "ChildFailed", {**error, "run": view.id}
        self.parent_facts.append(
            {
                "run_id": view.id,
                "to_run": waiter.run_id,
                "id": id_within(view.id, "ended"),
                "kind": kind,
                "payload": codec.dump(told),
                "created": now,
            }
        )


def reported_as(outcome: Outcome, encoder: codec.Encoder) -> dict[str, Any]:
    """How an outcome stands in a task's row."""
    match outcome:
        case HandedOver(run_id):
            return _ended(TaskState.IGNORED, "handed", codec.dump({"run": run_id}), None)
        case Succeeded(result):
            written = encoder.attributes(result) or "{}"
            return _ended(TaskState.COMPLETED, "succeeded", written, None)
        case Failed(error, retry):
            how = "failed" if retry else "final"
            return _ended(TaskState.FAILED, how, None, codec.dump(error))
        case Lost(reason):
            error = {"type": "WorkerLost", "message": reason}
            return _ended(TaskState.FAILED, "lost", None, codec.dump(error))


def _ended(state: str, outcome: str, result: str | None, error: str | None) -> dict[str, Any]:
    return {"state": state, "outcome": outcome, "result": result, "error": error}


def claimed_by(task: TaskDefinition, identity: WorkerIdentity) -> TaskDefinition:
    """Claim a task that is about to be inserted: it is born running, under its first lease."""
    task.state, task.lease = TaskState.RUNNING, 1
    task.runner_id, task.boot_id, task.pid = identity.server_id, identity.boot_id, identity.pid
    return task
