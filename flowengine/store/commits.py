"""The commit plan: the rows that one commit writes, section by section.

A plan may hold several runs. PostgreSQL writes all sections in one statement, SQLite one after
the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

from flowengine.evaluator import EventDefinition, RunView, Step, TaskDefinition
from flowengine.evaluator.records import (
    CachedResult,
    FollowUp,
    ReusedResult,
    TimerDefinition,
    Waiter,
    id_within,
)
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Outcome as TryOutcome
from flowengine.step_logs.chunks import LogChunk
from flowengine.store import codec, records
from flowengine.store.agent_calls import AgentCall
from flowengine.store.agent_plans import AgentPlan
from flowengine.store.commit_rows import (
    SECTIONS,
    AgentReport,
    Cached,
    ConsumedFact,
    ConsumedTask,
    EndedTimer,
    ErrorType,
    Fact,
    History,
    JoinCount,
    Label,
    NewEvent,
    NewTimer,
    Outcome,
    ParentFact,
    Payload,
    Reference,
    ReusedEvent,
    RunOrigin,
    RunUpdate,
    StoredLog,
    SupersededStep,
    TaskReport,
    Unnumbered,
)
from flowengine.store.endings import ending_of
from flowengine.store.records import Row


class CommitRefused(Exception):
    """A guard refused a commit with agents: nothing of it is written."""


@dataclass(slots=True)
class RunHeader:
    """The part of a run's row that an evaluation reads and writes."""

    view: RunView
    revision: int  #: commits so far
    task_count: int  #: tasks so far


@dataclass(frozen=True, slots=True)
class OutboxRule:
    """The outcomes that are delivered, and their sinks; whether all commits are in the feed."""

    sinks: tuple[str, ...]
    events: frozenset[str]
    feed: bool = False


#: Returns the notifications of pollers that a commit with these due tasks sends, by task list.
PollerNotes = Callable[[Mapping[str, int]], Mapping[str, str]]


class CommitPlan:
    """The rows of a commit. The part of each run is written whole or not at all."""

    # Not a dataclass: its default factories take three times as long, and each step has a plan.
    def __init__(
        self, *, rule: OutboxRule | None = None, notes_of: PollerNotes | None = None
    ) -> None:
        self.rule = rule  #: None: outcomes are not delivered
        self.notes_of = notes_of  #: None: the commit notifies no poller
        self.notes: list[str] = []  #: notifications of pollers
        self.encoder = codec.Encoder()
        self.new_runs: list[Row] = []
        self.runs: list[RunUpdate] = []
        self.history: list[History] = []
        self.reports: list[TaskReport] = []
        self.new_steps: list[Row] = []
        self.steps: list[Row] = []
        self.superseded_steps: list[SupersededStep] = []
        self.new_events: list[NewEvent] = []
        self.reused_events: list[ReusedEvent] = []
        self.timers: list[NewTimer] = []
        self.ended_timers: list[EndedTimer] = []
        self.joins: list[JoinCount] = []
        self.new_tasks: list[Row] = []
        self.consumed_tasks: list[ConsumedTask] = []
        self.facts: list[Fact] = []
        self.consumed_facts: list[ConsumedFact] = []
        self.parent_facts: list[ParentFact] = []
        self.agent_reports: list[AgentReport] = []
        self.payloads: list[Payload] = []
        self.references: list[Reference] = []
        self.cached: list[Cached] = []
        self.labels: list[Label] = []
        self.error_types: list[ErrorType] = []
        self.outbox: list[Outcome] = []
        self.unnumbered: list[Unnumbered] = []
        self.logs: list[StoredLog] = []
        self._gathered: set[tuple[str, str]] = set()
        #: With rows of agents a plan is written whole, or not at all.
        self.agents: AgentPlan | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.runs or self.new_runs or self.consumed_tasks or self.consumed_facts)

    def filled(self) -> list[tuple[str, Sequence[Row]]]:
        """Return the sections that have rows, in order, with the number of each run's reports."""
        # Lock order: payloads by hash. Two writers of the same values could deadlock.
        self.payloads.sort(key=lambda payload: payload.hash)
        reports = dict.fromkeys([run.run_id for run in self.runs], 0)
        for report in self.reports:
            reports[report.run_id] += 1
        runs = [(*run, reports[run.run_id]) for run in self.runs]
        # Without a loop over all sections in Python: most of them are empty, for every step.
        filled = filter(itemgetter(1), zip(SECTIONS, _rows_of(self), strict=True))
        found = [(name, runs if name == "runs" else rows) for name, rows in filled]
        return found if self.agents is None else [*found, *self.agents.filled()]

    def include(self, part: CommitPlan) -> None:
        """Add the rows of another plan, whose payloads are gathered."""
        for name, rows in part.filled():
            if name in SECTIONS:
                getattr(self, name).extend(part.runs if name == "runs" else rows)
        self.notes += part.notes
        if self.agents is None:
            self.agents = part.agents
        elif part.agents is not None:
            self.agents.include(part.agents)

    @property
    def run_ids(self) -> set[str]:
        return {run.run_id for run in self.runs} | {str(run[0]) for run in self.new_runs}

    def gather_payloads(self, run_id: str, now: int, *, to_run: str = "") -> None:
        """Add the large values encoded since the last call to this run's part.

        A run refers to the values that it writes. With `to_run`, that run refers to them too, and
        to the references that were encoded.
        """
        encoder = self.encoder
        for digest, body in encoder.payloads.items():
            if (run_id, digest) not in self._gathered:
                self._gathered.add((run_id, digest))
                self.payloads.append(Payload(run_id, digest, body, now))
                self.references.append(Reference(run_id, run_id, digest))
        if to_run:
            for digest in {**encoder.references, **encoder.payloads}:
                if (to_run, digest) not in self._gathered:
                    self._gathered.add((to_run, digest))
                    self.references.append(Reference(run_id, to_run, digest))
        encoder.payloads, encoder.references = {}, {}

    # --- runs ---

    def save_run(
        self, head: RunHeader, view: RunView, summary: Mapping[str, object], now: int, *, tasks: int
    ) -> RunHeader:
        """Update a run as decided; return its header after the commit."""
        after = RunHeader(view, head.revision + 1, head.task_count + tasks)
        outputs = None
        if view.outputs is not None:
            outputs = self.encoder.attributes(view.outputs) or "{}"
        self.runs.append(
            RunUpdate(
                view.id,
                head.revision,
                after.revision,
                view.state,
                view.generation,
                view.open_steps,
                view.step_count,
                view.value_bytes,
                after.task_count,
                outputs,
                codec.dump_value(view.error) if view.error else None,
                str(view.error.get("type"))[:_ERROR_TYPE] if view.error else None,
                view.alarm,
                now,
                now if view.state in RunState.FINAL else None,
            )
        )
        if view.error and self.error_types:  # its own row tells the type of its error
            told = ErrorType(view.id, error_label(str(view.error.get("type"))))
            self.error_types = [each for each in self.error_types if each != told]
        self.history.append(History(view.id, after.revision, now, codec.dump(summary)))
        if self.rule is not None and self.rule.feed:
            self.unnumbered.append(Unnumbered(view.id, after.revision, now))
        return after

    def insert_run(self, origin: RunOrigin, labels: Mapping[str, str] | None = None) -> None:
        """Insert the run that was saved last instead of updating it."""
        update = self.runs.pop()
        self.new_runs.append((update.run_id, *update[2:], *origin))
        for name, value in (labels or {}).items():
            label = Label(update.run_id, label_text(name), label_text(value), origin.created)
            self.labels.append(label)
        if self.error_types:  # the run's row, which has its time, is not visible yet
            own = [each for each in self.error_types if each.run_id == update.run_id]
            self.error_types = [each for each in self.error_types if each not in own]
            self.labels += [Label(*each, "", origin.created) for each in own]

    def add_outcomes(self, run_id: str, revision: int, now: int) -> None:
        """Have the outcomes of this commit delivered to each sink."""
        assert self.rule is not None
        self.outbox += [Outcome(run_id, sink, revision, now, 0, now) for sink in self.rule.sinks]

    # --- steps and events ---

    def add_steps(
        self, created: Sequence[Step], updated: Sequence[Step], stored: Mapping[str, Step | None]
    ) -> None:
        """Insert new steps, and update changed ones; `stored` are the steps as read, by key."""
        encoder = self.encoder
        self.new_steps += [records.new_step_row(step, encoder) for step in created]
        for step in (*created, *updated):
            if step.error is not None or step.failure is not None:
                self._note_errors(step)
        for step in updated:
            before = stored.get(step.key)
            is_new = before is None or before.params is not step.params
            self.steps.append(records.updated_step_row(step, encoder, has_new_params=is_new))

    def _note_errors(self, step: Step) -> None:
        """Keep the types of a step's errors, as labels: lists find the run by them, if caught."""
        for kind in error_types(step.error) | error_types((step.failure or {}).get("caught")):
            row = ErrorType(step.run_id, error_label(kind))
            if row not in self.error_types:
                self.error_types.append(row)

    def supersede_steps(self, run_id: str, step_ids: Iterable[str]) -> None:
        """Mark steps as replaced by a later generation."""
        self.superseded_steps += [SupersededStep(run_id, step_id) for step_id in step_ids]

    def add_events(self, created: Iterable[EventDefinition], now: int) -> None:
        self.new_events += [
            NewEvent(event.workflow_id, event.id, event.step_id, event.event_type, now)
            for event in created
        ]

    # --- the result cache ---

    def keep_results(self, run_id: str, results: Iterable[CachedResult]) -> None:
        """Add results to the cache; their large values stay as long as the entries."""
        for result in results:
            encoder = codec.Encoder()
            returns = encoder.attributes(result.returns)
            row = (result.key, result.tenant, result.facet, result.path, returns)
            self.cached.append(Cached(run_id, result.id, *row, result.created, result.expires))
            for digest in {**encoder.references, **encoder.payloads}:
                self.references.append(Reference(run_id, result.id, digest))
            self.encoder.payloads |= encoder.payloads

    def add_reused(self, run_id: str, reused: Iterable[ReusedResult], now: int) -> None:
        """Add events that were completed with results of the cache."""
        for one in reused:
            entry = one.source
            source = codec.dump([entry.run_id, entry.path, entry.created])
            event = (one.event_id, one.step_id, entry.facet, now, source)
            self.reused_events.append(ReusedEvent(run_id, *event))

    def add_timers(self, created: Iterable[TimerDefinition], now: int) -> None:
        self.timers += [
            NewTimer(timer.run_id, timer.id, timer.step_id, timer.kind, timer.due, now)
            for timer in created
        ]

    def end_timers(self, run_id: str, timer_ids: Iterable[str], now: int) -> None:
        """Mark timers as fired: their steps wait no longer."""
        self.ended_timers += [EndedTimer(run_id, timer_id, now) for timer_id in timer_ids]

    # --- tasks ---

    def add_tasks(self, created: Sequence[TaskDefinition], first: int) -> None:
        """Insert new tasks, numbered from `first` in the order of their creation."""
        for position, task in enumerate(created, first):
            task.position = position
        self.new_tasks += map(records.new_task_row, created)

    def add_report(self, task: TaskDefinition, outcome: TryOutcome, now: int) -> None:
        """End a task if its lease is still held; its report is consumed by this commit."""
        ending = ending_of(outcome, self.encoder)
        self.reports.append(TaskReport(task.workflow_id, task.uuid, task.lease, now, *ending))

    def add_log(self, chunks: Iterable[LogChunk], now: int) -> None:
        """Store the last lines of a try whose report this commit has."""
        self.logs += [stored_log(chunk, now) for chunk in chunks]

    def note_due(self, due: Mapping[str, int]) -> dict[str, int]:
        """Notify pollers of due tasks by this commit; return the tasks that it notifies of."""
        if self.notes_of is None or not due:
            return {}
        notes = self.notes_of(due)
        self.notes += notes.values()
        return {task_list: due[task_list] for task_list in notes}

    def consume_inbox(self, run_id: str, task_ids: Iterable[str], fact_ids: Iterable[str]) -> None:
        """Mark reports and facts as evaluated."""
        self.consumed_tasks += [ConsumedTask(run_id, task_id) for task_id in task_ids]
        self.consumed_facts += [ConsumedFact(run_id, fact_id) for fact_id in fact_ids]

    def add_joins(self, run_id: str, counts: Mapping[str, int], now: int) -> None:
        """Raise the join counters of a run."""
        self.joins += [
            JoinCount(run_id, join_id, count, now) for join_id, count in sorted(counts.items())
        ]

    def add_follow_ups(
        self,
        run_id: str,
        revision: int,
        follow_ups: Iterable[FollowUp],
        now: int,
        *,
        first: int = 0,
    ) -> None:
        """Add facts, numbered from `first` within the revision."""
        for number, later in enumerate(follow_ups, first):
            fact_id = id_within(run_id, revision, number)
            self.facts.append(
                Fact(run_id, fact_id, later.kind, codec.dump_value(later.payload), now)
            )

    def add_parent_fact(self, view: RunView, waiter: Waiter, now: int) -> None:
        """Report the end of this run to the step that waits for it."""
        fact: dict[str, object] = {"step_id": waiter.step_id, "step_key": waiter.step_key}
        if view.state == RunState.COMPLETED:
            answer = {"run": view.id, **(view.outputs or {})}
            kind, fact["outputs"] = "ChildCompleted", self.encoder.attributes(answer)
        else:
            error = view.error or {"type": view.state, "message": "the run did not complete"}
            kind, fact["error"] = "ChildFailed", {**error, "run": view.id}
        # A retried step may take up a run whose end another generation of it has seen.
        again = (view.generation, waiter.step_id) if view.generation else ()
        fact_id = id_within(view.id, "ended", *again)
        self.parent_facts.append(
            ParentFact(view.id, waiter.run_id, fact_id, kind, codec.dump_value(fact), now)
        )

    def keep_payloads(self, owner: str, encoder: codec.Encoder, now: int) -> None:
        """Store large values, which `owner`, a turn or a run, keeps."""
        for digest, body in encoder.payloads.items():
            self.payloads.append(Payload(owner, digest, body, now))
            self.references.append(Reference(owner, owner, digest))

    def add_agent_report(self, view: RunView, now: int) -> None:
        """Report the end of this run to the agent whose call it is."""
        call = AgentCall.read(view.agent_call or "")
        payload = codec.dump({"run": view.id, "state": view.state})
        inbox_id = id_within(view.id, "report", *((view.generation,) if view.generation else ()))
        to = (call.agent_id, call.message_type, call.correlation_id, call.turn_id, call.epoch)
        self.agent_reports.append(
            AgentReport(view.id, view.tenant, inbox_id, *to, payload, now, now, "pending", None)
        )

    def consume_agent_report(self, now: int) -> None:
        """Let this commit take in the report that was added last: its agent is part of it."""
        report = self.agent_reports.pop()
        self.agent_reports.append(report._replace(status="consumed", processed_at=now))


_rows_of = attrgetter(*SECTIONS)
_ERROR_TYPE = 255  #: characters of the column
_LABEL = 200  #: characters of a label that a list compares in the database


#: The beginning of the labels that are types of errors. No name of a user begins so: as the text of
#: a label its backslash would be doubled.
_ERROR_LABEL = "\\error "
#: Types of errors that tell of another error, or of none.
_NO_ERRORS = frozenset({"Skipped", "SkippedByHand", "Cancelled"})


def error_label(kind: str) -> str:
    """Return the name of the label of the runs that had such an error."""
    return _ERROR_LABEL + label_text(kind)[: _LABEL - len(_ERROR_LABEL)]


def error_types(error: Mapping[str, Any] | None) -> set[str]:
    """Return the types of an error and of its causes."""
    if not error or error.get("type") in _NO_ERRORS:
        return set()
    return {str(error["type"]), *error.get("causes", ())} | error_types(error.get("cause"))


def label_text(text: str) -> str:
    """Return a part of a label as its row has it: ASCII, because databases refuse some text."""
    return codec.dump(text)[1:-1][:_LABEL]


def stored_log(chunk: LogChunk, now: int) -> StoredLog:
    """Return a chunk as its row: its text holds values of runs."""
    key = (chunk.run_id, chunk.task_id, chunk.lease, chunk.first)
    return StoredLog(*key, chunk.line_count, now, codec.sealed(chunk.body))
