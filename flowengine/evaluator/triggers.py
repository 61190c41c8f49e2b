"""What can happen to a run between two evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flowengine.evaluator.records import Error
from flowengine.program.nodes import Json


@dataclass(frozen=True, slots=True)
class Succeeded:
    """A try ended with a result."""

    result: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Failed:
    """A try ended with an error."""

    error: Error
    retry: bool = True  #: False: the error is known not to go away


@dataclass(frozen=True, slots=True)
class Lost:
    """A try ended with the death of its worker."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A try ended by starting another run: its step waits for that run's end.

    It says nothing about the step yet, so the evaluator never hears of it.
    """

    run_id: str


TryOutcome: TypeAlias = Succeeded | Failed | Lost


@dataclass(frozen=True, slots=True)
class TryEnded:
    """A task was reported."""

    step_id: str
    step_key: str
    try_number: int
    losses: int
    outcome: TryOutcome


@dataclass(frozen=True, slots=True)
class StepContinue:
    """Somebody outside answers a step, past its tasks."""

    step_id: str
    step_key: str
    result: dict[str, Json]


@dataclass(frozen=True, slots=True)
class StepFail:
    """Somebody outside fails a step, past its tasks."""

    step_id: str
    step_key: str
    error: Error


@dataclass(frozen=True, slots=True)
class Unfold:
    """A foreach has more items than one commit should hold."""

    step_key: str


@dataclass(frozen=True, slots=True)
class Started:
    """The run was started with these inputs."""

    inputs: dict[str, Json]


Trigger: TypeAlias = Started | TryEnded | StepContinue | StepFail | Unfold
