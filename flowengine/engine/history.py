"""The history of a run: one entry for each commit, numbered by the revision without gaps.

An entry is written by the commit that it describes, so it is neither lost nor written twice. It
holds the transitions of steps, the tries that ended, retries, timers, answers and actions: enough
to draw the run's timeline. Values are not repeated; errors only by their type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.evaluator import IterationChanges
from flowengine.evaluator.records import ACTIVATION, CachedResult, Step, TaskDefinition
from flowengine.evaluator.states import EventState, StepState
from flowengine.evaluator.triggers import (
    Action,
    ActivationEnded,
    Answer,
    Failed,
    Lost,
    RanAhead,
    Report,
    Started,
    Succeeded,
    Trigger,
)
from flowengine.store import Session, codec
from flowengine.store.history import StoredEntry
from flowengine.store.shown_values import shown_step

#: Transitions that one entry lists: as many as a commit creates steps with the default of
#: max_commit_steps. Of the others the feed of events needs the steps that reached their event, so
#: the entry names these apart; tries, retries and events ended from outside are always named.
MAX_LISTED = 10_000
#: A longer path is written as the key of its row: paths of deep steps grow with their depth.
MAX_PATH = 200
_KEY = "#"
_PREFIX = "state."  #: of the states of steps and blocks, left out
#: The first try of these steps succeeded, and that completed them: two facts in one word.
_SUCCEEDED = "succeeded"
SUSPENDED = "suspended"  #: the end of an activation whose function goes on
_REASON = 500  #: characters of a refusal
_AT_EVENT = StepState.EVENT_TRANSMIT
#: In an entry: activations of durable functions behind the first, by number. Times do not tell them
#: apart: a clock may stand still.
ACTIVATIONS = "activations"
BEGUN = "begun"  #: in an entry: steps that reached their event, behind the listed transitions


@dataclass(frozen=True, slots=True)
class StepTransition:
    """A step or block entered a state."""

    path: str
    state: str


@dataclass(frozen=True, slots=True)
class TryEnded:
    """A try of a step ended: succeeded, failed, final (no retry is allowed) or lost.

    Of a durable function also suspended: an activation ended, and the function waits for its calls.
    """

    path: str
    number: int
    outcome: str
    losses: int = 0  #: tries before it whose worker died
    error_type: str | None = None


@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """Another try of a step was created."""

    path: str
    number: int
    due: int
    losses: int = 0


@dataclass(frozen=True, slots=True)
class TimerSet:
    """A step began to wait for a time, or for an answer until that time."""

    path: str
    kind: str
    due: int


@dataclass(frozen=True, slots=True)
class ResultReused:
    """A step completed its event with a result of the cache, without a try."""

    path: str
    run: str  #: the run and the path of the step that had the result
    source: str
    at: int  #: when that step completed


@dataclass(frozen=True, slots=True)
class Intervention:
    """Somebody acted on the run, or answered a question of it."""

    kind: str  #: an action, or "answer"
    subject: str  #: path or key of the step, name of the question; empty: the run
    actor: str
    reason: str
    at: int
    refused: str | None = None  #: why nothing was changed


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One commit of a run."""

    revision: int
    at: int  #: milliseconds since the epoch
    state: str  #: of the run, after the commit
    triggers: Mapping[str, int]  #: the kinds of inputs that were evaluated, counted
    steps: Sequence[StepTransition] = ()
    tries: Sequence[TryEnded] = ()
    retries: Sequence[RetryScheduled] = ()
    timers: Sequence[TimerSet] = ()
    interventions: Sequence[Intervention] = ()
    reused: Sequence[ResultReused] = ()
    generation: int = 0
    #: Transitions that are not listed: of a commit with more than 10,000, or of an early version.
    omitted: int = 0


# --- writing ---


def summary(
    triggers: Sequence[Trigger],
    changes: IterationChanges,
    stored: Mapping[str, Step | None],
    state: str,
    generation: int,
) -> dict[str, Any]:
    """Return the entry of one commit; `stored` are the steps before it. Runs for every step."""
    kinds: dict[str, int] = {}  # not a Counter, which costs more
    first_tries: set[str] = set()
    found: dict[str, Any] = {"happened": kinds, "state": state}
    if changes.created_steps:
        found["created"] = len(changes.created_steps)
    for trigger in triggers:
        name = type(trigger).__name__
        kinds[name] = kinds.get(name, 0) + 1
        if isinstance(trigger, Report):
            task = trigger.task
            before = stored.get(task.step_key)
            if before is None or before.id != task.step_id or before.state != _AT_EVENT:
                found.setdefault("late", []).append(task.uuid)
            if isinstance(trigger.outcome, Succeeded) and task.try_number == 1 and not task.losses:
                first_tries.add(task.step_key)
            else:
                found.setdefault("tries", []).append(_try(trigger))
        elif isinstance(trigger, RanAhead):
            if trigger.step_key in changes.ran_ahead:
                found.setdefault("ahead", []).append(_ahead(trigger))
        elif isinstance(trigger, Action | Answer):
            found.setdefault("acts", []).append(_act(trigger))
        elif not isinstance(trigger, Started):
            found.setdefault("inputs", []).append([name, trigger.step_key])
    moved = [*changes.created_steps, *changes.updated_steps]
    if len(moved) > MAX_LISTED:
        moved = [step for step in moved if not _is_same(stored.get(step.key), step)]
    if len(moved) > MAX_LISTED:
        found["more"] = len(moved) - MAX_LISTED
        begun = [step for step in moved[MAX_LISTED:] if step.state == _AT_EVENT]
        if begun:
            found[BEGUN] = [_named(step.path, step.key) for step in begun]
        del moved[MAX_LISTED:]
    if steps := _transitions(moved, stored, first_tries):
        found["steps"] = steps
    if first_tries:  # its step has a body, or did not complete with this commit
        found.setdefault("tries", []).extend(
            _try(trigger)
            for trigger in triggers
            if isinstance(trigger, Report) and trigger.step_key in first_tries
        )
    if generation:
        found["generation"] = generation
    if changes.created_tasks:
        found["tasks"] = len(changes.created_tasks)
        for task in changes.created_tasks:
            if task.losses or task.try_number > 1:
                _add_later_try(found, task)
    if changes.created_timers:
        names = {s.id: s for s in (*changes.created_steps, *changes.updated_steps)}
        found["timers"] = [
            [_named(names[timer.step_id].path, names[timer.step_id].key), timer.kind, timer.due]
            for timer in changes.created_timers
            if timer.step_id in names
        ]
    if changes.reused_results:
        found["reused"] = [
            [_named(one.path, one.step_key), *_source(one.source)] for one in changes.reused_results
        ]
    if changes.canceled_steps:
        found["left"] = _left(changes)
    if changes.refusals:
        found["refused"] = {one.answer_id: one.reason[:_REASON] for one in changes.refusals}
    if changes.dropped_answers:
        found["dropped"] = [
            [one.path[:MAX_PATH], one.name, one.actor, one.at, one.reason[:_REASON]]
            for one in changes.dropped_answers
        ]
    return found


def _add_later_try(found: dict[str, Any], task: TaskDefinition) -> None:
    """Add a retry, or a later activation of a durable function, whose event is there already."""
    name = _named(task.step_path, task.step_key)
    if task.data_type == ACTIVATION and not task.losses:
        found.setdefault(ACTIVATIONS, []).append([name, task.try_number])
    else:
        row = [name, task.try_number, task.losses, task.due]
        found.setdefault("retries", []).append(row)


def _is_same(before: Step | None, step: Step) -> bool:
    return before is not None and before.state == step.state and before.id == step.id


def _transitions(
    touched: Iterable[Step], stored: Mapping[str, Step | None], first_tries: set[str]
) -> dict[str, list[str]]:
    """Return paths by state. Steps that their first try completed leave `first_tries`."""
    found: dict[str, list[str]] = {}
    for step in touched:
        key, state, path = step.key, step.state, step.path
        if _is_same(stored.get(key), step):
            continue
        if key in first_tries and state == StepState.COMPLETE:
            first_tries.discard(key)
            word = _SUCCEEDED
        else:
            word = state.removeprefix(_PREFIX)
        if len(path) > MAX_PATH:
            path = _KEY + key
        if word in found:
            found[word].append(path)
        else:
            found[word] = [path]
    return found


def _left(changes: IterationChanges) -> dict[str, list[str]]:
    """Return the steps whose event an input from outside has ended, by the state of the event."""
    answered = set(changes.answered_steps)
    failed = [step_id for step_id in changes.canceled_steps if step_id not in answered]
    found = {EventState.COMPLETED: sorted(answered), EventState.ERROR: failed}
    return {state: step_ids for state, step_ids in found.items() if step_ids}


def has_outcome(entry: Mapping[str, Any], events: Collection[str], has_ended: bool) -> bool:
    """Whether a commit has an outcome of these kinds: the end of the run, or of a step."""
    if has_ended and _RUN_EVENTS & set(events):
        return True
    steps = entry.get("steps", {})
    if "step_failed" in events and _ERROR in steps:
        return True
    return "step_completed" in events and (_SUCCEEDED in steps or _COMPLETE in steps)


_RUN_EVENTS = frozenset({"run_completed", "run_failed", "run_cancelled"})
_ERROR = StepState.ERROR.removeprefix(_PREFIX)
_COMPLETE = StepState.COMPLETE.removeprefix(_PREFIX)


def _named(path: str, key: str) -> str:
    return path if len(path) <= MAX_PATH else _KEY + key


def _try(report: Report) -> list[Any]:
    task, outcome = report.task, report.outcome
    kind, error_type = _SUCCEEDED, None
    if isinstance(outcome, Failed):
        kind, error_type = "failed" if outcome.retry else "final", outcome.error.get("type")
    elif isinstance(outcome, Lost):
        kind = "lost"
    elif isinstance(outcome, ActivationEnded):
        ended = outcome.ended
        kind = _SUCCEEDED if isinstance(ended, Succeeded) else "final" if ended else SUSPENDED
    return [_named(task.step_path, task.step_key), task.try_number, task.losses, kind, error_type]


def _ahead(ahead: RanAhead) -> list[Any]:
    """Return an activation that has no task: its calls by number, for their rows have the rest."""
    report = ahead.report
    ended = "" if report.ended is None else "result" if _has_result(report) else "error"
    numbers = [call.number for call in report.calls]
    told = [list(report.heard), list(report.cancelled)]
    return [ahead.step_key, ahead.number, numbers, *told, ended, report.seen]


def _has_result(report: ActivationEnded) -> bool:
    return isinstance(report.ended, Succeeded)


def _source(entry: CachedResult) -> list[Any]:
    return [entry.run_id, entry.path, entry.created, entry.key]


def _act(act: Action | Answer) -> list[Any]:
    if isinstance(act, Answer):
        return [act.id, "answer", act.name, act.actor, "", act.at]
    subject = _KEY + act.step_key if act.step_key else ""
    return [act.id, str(act.kind), subject, act.actor, act.reason, act.at]


# --- reading ---


def entries(session: Session, run_id: str, after: int, limit: int) -> list[HistoryEntry]:
    """Return the entries of a run behind the revision `after`, in order."""
    rows = session.history.after(run_id, after, limit)
    found = [(row, codec.load(row.summary)) for row in rows]
    keys = sorted({key for _, body in found for key in _keys(body)})
    steps = session.steps.load({run_id: keys}, decode=shown_step)[run_id] if keys else {}
    paths = {key: step.path for key, step in steps.items()}
    return [entry_of(row, body, paths) for row, body in found]


def entry_of(row: StoredEntry, body: Mapping[str, Any], paths: Mapping[str, str]) -> HistoryEntry:
    """Decode an entry; `paths` are those of the rows that it names by their keys."""

    def path_of(name: str) -> str:
        return paths.get(name[1:], name) if name.startswith(_KEY) else name

    steps: list[StepTransition] = []
    tries: list[TryEnded] = []
    for word, names in body.get("steps", {}).items():
        for name in map(path_of, names):
            if word == _SUCCEEDED:
                tries.append(TryEnded(name, 1, _SUCCEEDED))
                steps.append(StepTransition(name, StepState.COMPLETE))
            else:
                steps.append(StepTransition(name, _state(word)))
    omitted = body.get("more", 0)
    if "ended" in body:  # of an early version: it named ten steps that had ended
        steps += [StepTransition(name, StepState.COMPLETE) for name in body["ended"]]
        omitted = body.get("created", 0)
    tries += [
        TryEnded(path_of(name), number, outcome, losses, error_type)
        for name, number, losses, outcome, error_type in body.get("tries", ())
    ]
    refused = body.get("refused", {})
    return HistoryEntry(
        revision=row.revision,
        at=row.at,
        state=body["state"],
        triggers=body["happened"],
        steps=steps,
        tries=tries,
        retries=[
            RetryScheduled(path_of(name), number, due, losses)
            for name, number, losses, due in body.get("retries", ())
        ],
        timers=[TimerSet(path_of(name), kind, due) for name, kind, due in body.get("timers", ())],
        interventions=[
            Intervention(kind, path_of(subject), actor, reason, at, refused.get(act_id))
            for act_id, kind, subject, actor, reason, at in body.get("acts", ())
        ]
        + [
            Intervention("answer", name, actor, f"kept until {path} began", at, refusal)
            for path, name, actor, at, refusal in body.get("dropped", ())
        ],
        reused=[
            ResultReused(path_of(name), run, source, at)
            for name, run, source, at, _ in body.get("reused", ())
        ],
        generation=body.get("generation", 0),
        omitted=omitted,
    )


_WITHOUT_PREFIX = ("mailbox.",)


def _state(word: str) -> str:
    return word if word.startswith(_WITHOUT_PREFIX) else _PREFIX + word


_NAMING = ("tries", "retries", "timers", "reused")


def _keys(body: Mapping[str, Any]) -> Iterable[str]:
    """Yield the keys by which an entry names rows."""
    names = [name for listed in body.get("steps", {}).values() for name in listed]
    names += [row[0] for part in _NAMING for row in body.get(part, ())]
    names += [row[2] for row in body.get("acts", ())]
    return (name[1:] for name in names if name.startswith(_KEY))
