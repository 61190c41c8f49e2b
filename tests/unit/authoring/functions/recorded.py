"""A durable function with its record, kept as a store keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flowengine.authoring.functions import (
    Activation,
    ActivationLimits,
    DurableFunction,
    durable_function,
)
from flowengine.program.function_calls import CallEnd, FunctionCall, FunctionRecord, Progress

START = 1_700_000_000_000
LIMITS = ActivationLimits(max_calls=200, max_iterations=1_000)


class Recorded:
    """One function: its calls, ends and cancellations so far, and the activation that is kept."""

    def __init__(self, body: Callable[..., Any], **inputs: Any) -> None:
        self.function = as_function(body)
        self.inputs = inputs
        self.calls: list[FunctionCall] = []
        self.ends: list[CallEnd] = []
        self.cancelled: set[int] = set()
        self.heard: tuple[int, ...] = ()
        self.at = START
        self.activation = self.activate()
        self.progress = self._keep(self.activation.advance())

    def activate(
        self, body: Callable[..., Any] | None = None, *, strict: bool = True
    ) -> Activation:
        """Return a new activation with the record, of other code if a body is given."""
        calls = tuple(
            replace(call.recorded(), is_cancelled=call.number in self.cancelled)
            for call in self.calls
        )
        return Activation(
            as_function(body) if body else self.function,
            self.inputs,
            step_id="step",
            started=START,
            record=FunctionRecord(calls, tuple(self.ends)),
            limits=LIMITS,
            strict=strict,
        )

    def end(
        self, number: int, result: Any = None, *, error: Any = None, after: int = 1
    ) -> Progress:
        """End a call some seconds later; return the progress of the kept activation."""
        self.at += after * 1000
        end = CallEnd(number, self.at, result, error)
        self.ends.append(end)
        return self._keep(self.activation.advance([end]))

    def end_all(self, answer: Callable[[FunctionCall], Any]) -> Progress:
        """End open calls, the oldest first, until the function ends."""
        while self.progress.ended is None:
            self.end(self.open[0].number, answer(self.open[0]))
        return self.progress

    @property
    def open(self) -> list[FunctionCall]:
        done = self.cancelled | {end.number for end in self.ends}
        return [call for call in self.calls if call.number not in done]

    @property
    def facets(self) -> list[str]:
        return [call.facet.rpartition(".")[2] for call in self.calls]

    @property
    def result(self) -> Any:
        ended = self.progress.ended
        assert ended is not None, "it has not ended"
        assert ended.error is None, ended.error
        return ended.result

    @property
    def error(self) -> Any:
        ended = self.progress.ended
        assert ended is not None, "it has not ended"
        return ended.error

    def drop_and_replay(self) -> Progress:
        """Continue with a new activation; return its first progress."""
        self.activation.drop()
        self.activation = self.activate()
        return self._keep(self.activation.advance())

    def _keep(self, progress: Progress) -> Progress:
        assert [call.number for call in progress.calls] == list(
            range(len(self.calls), len(self.calls) + len(progress.calls))
        )
        self.calls += progress.calls
        self.cancelled |= set(progress.cancelled)
        self.progress = progress
        return progress


def as_function(body: Callable[..., Any]) -> DurableFunction:
    return durable_function(body, name=f"tests.{body.__name__}")
