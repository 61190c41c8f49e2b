"""Run durable functions ahead: before the ends that they hear are committed.

A worker that reports the end of a call, and keeps the coroutine of its function, tells the
coroutine first. The calls that it makes then are part of the commit of the report: one commit in
place of two, and no task for the activation. An activation has no effects of its own, so nothing is
lost if the commit is refused: the coroutine is dropped, and the function is replayed from its
record.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from flowengine.evaluator.call_statements import number_of_call
from flowengine.evaluator.records import RUN_CALL
from flowengine.evaluator.triggers import RanAhead, Report, Succeeded
from flowengine.program.function_calls import CallEnd, Progress
from flowengine.store import codec
from flowengine.store.calls import result_of
from flowengine.worker.activations import report_of
from flowengine.worker.in_place_policy import InPlacePolicy
from flowengine.worker.kept_functions import KeptFunction, KeptFunctions, function_of_call

log = logging.getLogger("flowengine")


@dataclass(slots=True)
class AheadFunction:
    """A function that was told of ends before they are committed."""

    run_id: str
    kept: KeptFunction
    trigger: RanAhead | None = None


class RunAhead:
    """Shared by all threads of a process."""

    def __init__(self, kept: KeptFunctions, policy: InPlacePolicy) -> None:
        self._kept, self._policy = kept, policy

    def run(self, by_run: Mapping[str, Sequence[Report]], now: int) -> list[AheadFunction]:
        """Tell the functions that are kept here of the calls that these reports end."""
        if not self._kept:
            return []
        found: list[AheadFunction] = []
        for run_id, reports in by_run.items():
            by_function: dict[str, list[Report]] = {}
            for report in reports:
                by_function.setdefault(function_of_call(report.task), []).append(report)
            for function, of_function in by_function.items():
                kept = self._kept.take_at(function) if _are_told(of_function) else None
                if kept is not None:
                    found += self._told(run_id, kept, of_function, now)
        return found

    def _told(
        self, run_id: str, kept: KeptFunction, reports: Sequence[Report], now: int
    ) -> list[AheadFunction]:
        ends = []
        for report in reports:
            assert isinstance(report.outcome, Succeeded)
            result = codec.plain(report.outcome.result)  # as it is read back
            ends.append(CallEnd(number_of_call(report.task.step_key), now, result_of(result)))
        activation = kept.activation
        if not {end.number for end in ends} <= set(activation.open_numbers):
            activation.drop()  # it does not know all of its calls
            return []
        try:
            progress = activation.advance(ends)
        except Exception as problem:  # a regular activation finds the same, and says so
            log.debug("%s was not run ahead: %s", kept.function.path, problem)
            activation.drop()
            return []
        calls = [*kept.unreported, *progress.calls]
        cancelled = [*kept.unreported_cancels, *progress.cancelled]
        kept.seen += len(ends)
        reached = Progress(tuple(calls), progress.heard, tuple(cancelled), progress.ended)
        made = report_of(reached, kept.seen)
        if made.is_partial or (
            calls and not cancelled and self._policy.leading(calls, self._policy.served())
        ):
            # An activation with a lease makes the next calls in place.
            kept.unreported, kept.unreported_cancels = calls, cancelled
            if progress.ended is not None:
                activation.drop()
                return []
            return [AheadFunction(run_id, kept)]
        kept.unreported, kept.unreported_cancels = (), ()
        step = kept.function
        trigger = RanAhead(step.id, step.key, kept.number + 1, made)
        return [AheadFunction(run_id, kept, trigger)]

    def settle(self, ahead: Sequence[AheadFunction], written: Collection[tuple[str, str]]) -> None:
        """Keep the coroutines whose part of the commit was written; drop the others."""
        for one in ahead:
            key = "" if one.trigger is None else one.trigger.step_key
            if (one.run_id, key) not in written or one.kept.activation.is_dropped:
                one.kept.activation.drop()
                continue
            if one.trigger is not None:
                one.kept.number = one.trigger.number
            self._kept.keep(one.kept)


def _are_told(reports: Sequence[Report]) -> bool:
    """Whether these reports end their calls: a failed try may be followed by another."""
    return all(
        isinstance(report.outcome, Succeeded) and report.task.data_type != RUN_CALL
        for report in reports
    )
