"""Errors of runs: of their start, of a question about them, of an action on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowengine.errors.flowengine_error import FlowengineError
from flowengine.errors.values import ValueRefused
from flowengine.printable import printable
from flowengine.shown_paths import shown_path


@dataclass(eq=False, repr=False)
class UnknownRun(FlowengineError, LookupError):
    """No run has that id."""

    run_id: str
    _text = (
        "there is no run {run_id!r} in this database, or it was purged; `flowengine list` shows "
        "the runs"
    )


@dataclass(eq=False, repr=False)
class AmbiguousRun(FlowengineError, LookupError):
    """Several run ids start with that prefix."""

    beginning: str
    _text = "several run ids start with {beginning!r}: give a longer prefix"


@dataclass(eq=False, repr=False)
class RunFailed(FlowengineError):
    """The run has failed, so it has no result."""

    run_id: str
    path: str
    error_type: str
    message: str
    _text = (
        "run {run_id} failed at {place}: {error_type}: {message} "
        "(`flowengine show {run_id}` shows every step)"
    )

    def __str__(self) -> str:
        return self._text.format_map({**vars(self), "place": shown_path(self.path)})


@dataclass(eq=False, repr=False)
class RunCancelled(FlowengineError):
    """The run was cancelled, so it has no result."""

    run_id: str
    message: str  #: who cancelled it, and why
    _text = "run {run_id} was {message} (`flowengine show {run_id}` shows every step)"


@dataclass(eq=False, repr=False)
class EarlierRunFailed(RunFailed):
    """The run that an earlier start with the key has started has failed."""

    key: str = ""
    _text = (
        "key {key!r} was used for run {run_id}, which failed at {place}: {error_type}: {message}. "
        "Nothing is started: start with if_failed='start' to run it again, or with another key "
        "(`flowengine show {run_id}` shows every step)"
    )


@dataclass(eq=False, repr=False)
class AlreadyRunning(FlowengineError):
    """Another open run of the workflow has the singleton key."""

    workflow: str
    key: str
    run_id: str
    _text = (
        "{workflow} is running with the singleton key {key!r}: run {run_id}. Nothing is started: "
        "wait for its end, or start with if_running='return', 'replace' or 'queue'"
    )


@dataclass(eq=False, repr=False)
class TooManyRuns(FlowengineError):
    """A workflow has as many open runs as it may have."""

    workflow: str
    limit: int
    _text = (
        "{workflow} has {limit} open runs, which is its limit. Nothing is started: start it again "
        "when some have ended, or raise max_open (the setting max_open_runs)"
    )


@dataclass(eq=False, repr=False)
class WorkflowClosed(FlowengineError):
    """Somebody has closed the workflow for new starts."""

    workflow: str
    actor: str
    reason: str

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return (
            f"{self.workflow} is closed for new starts, by {self.actor}{why}. Nothing is started, "
            f"and open runs go on; `flowengine workflows open {self.workflow}` ends this"
        )


@dataclass(eq=False, repr=False)
class PartlyStarted(FlowengineError):
    """`start_many` started some runs before a later commit failed."""

    started: list[Any]
    requested: int
    problem: Exception

    def __str__(self) -> str:
        return (
            f"{len(self.started)} of {self.requested} runs were started before "
            f"{type(self.problem).__name__}: {self.problem}. They continue and are in the "
            "error's `started`; start only the remaining inputs again"
        )


@dataclass(eq=False, repr=False)
class TenantRefused(FlowengineError):
    """An app or a token is bound to one tenant, and another one was asked for."""

    bound: str
    asked: str
    _text = (
        "tenant {asked!r} is refused: this app or token is bound to tenant {bound!r} (settings "
        "tenant and tenant_tokens) and neither starts nor reads runs of others; leave the tenant "
        "out, or use an app or a token of that tenant"
    )


@dataclass(eq=False, repr=False)
class InvalidFilter(FlowengineError, ValueError):
    """A filter of runs that cannot match as it is meant."""

    problem: str
    _text = "{problem}"

    @classmethod
    def of(cls, name: str, value: object, expected: str) -> InvalidFilter:
        shown = printable(repr(value), limit=200)
        return cls(f"the filter {name} is {shown}: it must be {expected}")


@dataclass(eq=False, repr=False)
class InvalidActor(FlowengineError):
    """The name of an actor that no action can record."""

    name: str
    limit: int
    meant: str = ""  #: with the kind that the name seems to have
    _text = (
        "{name!r} names no actor: write a printable name of 1 to {limit} characters, with its kind "
        "if it is not a person, as in 'token:ci'"
    )

    def __str__(self) -> str:
        if not self.meant:
            return super().__str__()
        kind = self.name.partition(":")[0]
        return (
            f"{self.name!r} names no actor: {kind!r} is no kind of actor, the kinds are person, "
            f"token, schedule and server; write {self.meant!r}, or 'person:{self.name}' for a "
            "person of that name"
        )


@dataclass(eq=False, repr=False)
class ActionRefused(FlowengineError):
    """An action that the run does not take in its state; nothing was changed."""

    run_id: str
    action: str
    reason: str
    _text = "{action} of run {run_id} is refused: {reason}"


@dataclass(eq=False, repr=False)
class AnswerRefused(ValueRefused):
    """An answer from outside that no step of the run takes; nothing of it is stored."""

    run_id: str
    name: str
    reason: str
    _text = "the answer {name!r} for run {run_id} is refused: {reason}"


@dataclass(eq=False, repr=False)
class LinkRefused(ValueRefused):
    """A link with an answer that cannot be made, or is not valid."""

    reason: str
    _text = "the link is refused: {reason}"


@dataclass(eq=False, repr=False)
class NotReplayable(FlowengineError, ValueError):
    """The export of a run does not have all that a replay needs."""

    run_id: str
    revision: int  #: of the first commit that cannot be evaluated again
    reason: str
    _text = "run {run_id} cannot be replayed at revision {revision}: {reason}"


@dataclass(eq=False, repr=False)
class FeedDisabled(FlowengineError, RuntimeError):
    """The events of all runs were asked for, and their commits are not numbered."""

    _text = (
        "the events of all runs need the setting event_feed: set FLOWENGINE_EVENT_FEED=on in every "
        "process that starts runs or works on them; those of one run need none: events(run_id, "
        "after=0)"
    )
