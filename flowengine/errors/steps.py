"""Errors of steps and of the tries of their code."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.errors.flowengine_error import FlowengineError


@dataclass(eq=False, repr=False)
class UnknownStep(FlowengineError, LookupError):
    """No step has that id."""

    step_id: str
    _text = "there is no step {step_id!r} in this database"


class ScriptFailed(FlowengineError):
    """A script block raised, exceeded its time or memory limit, or returned no map."""


class WaitTimedOut(FlowengineError):
    """The type of the error of a `wait_for` that nobody answered in time; `attempt` catches it."""


class DeadlineExceeded(FlowengineError):
    """The type of the error of a step or run that has not ended in time; `attempt` catches it."""


@dataclass(eq=False, repr=False)
class TryCancelled(FlowengineError):
    """The result of this try is no longer wanted."""

    path: str
    _text = (
        "the try of {path} is cancelled: its run was cancelled, or its step has timed out or was "
        "answered from outside; its result would be refused"
    )


@dataclass(eq=False, repr=False)
class WaitInsideStep(FlowengineError):
    """Code of a step waits for a run of the same engine."""

    run_id: str
    step: str
    _text = (
        "step {step} cannot wait for run {run_id}: it would keep its place in the pool, and with "
        "every place waiting no run could go on. Let the event facet return other.call(...), or "
        "write other.start(...).result() in the workflow: then the engine waits, without a place"
    )


@dataclass(eq=False, repr=False)
class IllegalTransition(FlowengineError):
    """The table of a state machine has no such transition."""

    what: str
    state: str
    signal: str
    _text = "{what} is {state} and has no transition for {signal}"


@dataclass(eq=False, repr=False)
class RetryAfter(FlowengineError):
    """Raised by an event facet: this try has failed, and the next one begins after that time.

    It counts as a try of the facet's retry policy, whose wait it replaces. Raised from another
    error without a reason, it is recorded as that error.
    """

    seconds: float
    reason: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, int | float):
            raise TypeError(f"RetryAfter takes a number of seconds, not {self.seconds!r}")
        if not 0 <= self.seconds < float("inf"):
            raise ValueError(f"RetryAfter takes seconds of 0 or more, not {self.seconds!r}")

    @property
    def recorded(self) -> BaseException:
        """The error that the try has failed with."""
        return self if self.reason or self.__cause__ is None else self.__cause__

    def __str__(self) -> str:
        return self.reason or f"to be tried again after {self.seconds:g} s"


@dataclass(eq=False, repr=False)
class GiveUp(FlowengineError):
    """Raised by an event facet: the step fails now, whatever tries its retry policy allows."""

    reason: str = "the facet gives up"

    _text = "{reason}"


@dataclass(eq=False, repr=False)
class CommandFailed(FlowengineError):
    """Raised by a ready-made facet: a command did not end with 0."""

    command: str
    reason: str
    stderr: str = ""  #: the last 4 KiB

    def __str__(self) -> str:
        said = f"; it wrote to its standard error: {self.stderr}" if self.stderr else ""
        return f"{self.command} {self.reason}{said}"
