"""Run the activations of durable functions.

An activation runs the code of a function until everything in it waits, and reports its new calls.
The code is run from the record of the function: calls that are recorded are not made again. Quick
calls are made by the activation itself (`in_place_calls`).
"""

from __future__ import annotations

import functools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from flowengine.authoring import WorkflowCall, workflow_of_version
from flowengine.engine import Engine
from flowengine.errors import Divergence, MissingCode, StoreError
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.call_statements import call_key, plan_of_call
from flowengine.evaluator.functions import DIVERGED
from flowengine.evaluator.records import ACTIVATION
from flowengine.evaluator.triggers import ActivationEnded, Failed, Lost, Outcome, Succeeded
from flowengine.program.function_calls import (
    CallEnd,
    CallKind,
    DifferentArguments,
    FunctionEnd,
    Progress,
)
from flowengine.program.function_options import function_facet
from flowengine.program.limits import clipped
from flowengine.program.standard import RESULT
from flowengine.store.failures import DatabaseFailure, is_deadlock, is_unavailable
from flowengine.worker.activation_probe import ActivationProbe
from flowengine.worker.child_starts import ChildNotStarted, start_child
from flowengine.worker.execution import OpenLog
from flowengine.worker.handlers import FindHandler
from flowengine.worker.in_place_calls import InPlaceCalls, NotRecorded
from flowengine.worker.in_place_policy import InPlacePolicy
from flowengine.worker.kept_functions import KeptFunction, KeptFunctions

Beat: TypeAlias = Callable[[str | None], bool]
T = TypeVar("T")
#: A function that runs. It yields its calls in place whenever they must be recorded: if they were
#: not, together with those of others, it records them itself when it goes on.
Rounds: TypeAlias = Generator[InPlaceCalls, None, T]

log = logging.getLogger("flowengine")

_LONGEST_ALARM = 1_000  # characters
_MEASURED = 32  #: rounds of calls in place whose code is measured; the others take as long
_MAX_WARNED = 1_000  # functions that are remembered
MAX_NEW_CALLS = 500  #: of one report: a commit stays small however wide a gather is


@dataclass(slots=True)
class LoadedFunction:
    """A function that is about to go on: a coroutine, and the ends that it is told of."""

    task: TaskDefinition
    kept: KeptFunction
    seen: int  #: ends of calls so far, as the function's row counts them
    ends: Sequence[CallEnd] = ()  #: for a coroutine that was kept; others replay their record
    #: That its code, and that of its calls in place, took from one wait to the next, on average: an
    #: activation that makes eight quick calls is like eight quick tasks, and not like a slow one.
    seconds: float = 0.0


class Activations:
    """Runs activations for one process. Shared by all threads of its pool."""

    def __init__(
        self,
        engine: Engine,
        find: FindHandler,
        policy: InPlacePolicy | None = None,
        kept: KeptFunctions | None = None,
        *,
        strict: bool = False,
    ) -> None:
        """Without a policy only plain functions are called in place.

        Without `kept` no coroutine outlives its activation: each is a replay. With `strict`, for
        tests, a recorded call that is given other arguments is a Divergence.
        """
        self._engine, self._find, self._policy, self._kept = engine, find, policy, kept
        self._strict = strict
        self._warned: OrderedDict[str, None] = OrderedDict()  #: functions with other arguments
        self.probe = ActivationProbe()
        # In a process that has its database in itself many threads want the interpreter, and the
        # wait for it says nothing about the code: there processor time is measured. Else a busy
        # process would take its functions for slow ones, wake more threads, and be busier still.
        has_server = engine.database.has_server
        self.clock: Callable[[], float] = time.monotonic if has_server else time.thread_time

    def execute(
        self,
        task: TaskDefinition,
        beat: Beat = lambda _: True,
        open_log: OpenLog | None = None,
    ) -> Outcome:
        """Run an activation, or start the run that a function awaits; raises Divergence."""
        if task.data_type != ACTIVATION:
            return self.start_run(task)
        loaded = self.load(task)
        if isinstance(loaded, Failed):
            return loaded
        try:
            return _alone(self.rounds(loaded, beat, open_log))
        finally:
            loaded.kept.activation.drop()

    def load(self, task: TaskDefinition) -> LoadedFunction | Failed:
        """Read the record of a function, or the new ends for its coroutine that is kept here.

        Raises errors of the database.
        """
        kept = None if self._kept is None else self._kept.take(task)
        if kept is not None:
            try:
                return self._loaded_kept(task, kept)
            except BaseException:
                kept.activation.drop()
                raise
        handler: Any = self._find(task.name)
        if not hasattr(handler, "durable"):
            return _failure(MissingCode(task.name))
        with self._engine.database.autocommit_read() as session:
            stored = session.calls.record(task.workflow_id, task.step_key, task.step_path)
        if stored is None or stored.step.id != task.step_id:
            return _retried(task)
        from flowengine.authoring.functions import (  # they load asyncio
            Activation,
            ActivationLimits,
        )

        settings = self._engine.settings
        activation = Activation(
            handler.durable,
            task.data or {},
            step_id=f"{task.workflow_id}:{task.step_key}",
            started=stored.step.created,
            record=stored.record,
            limits=ActivationLimits(
                max_calls=settings.max_function_calls, max_value_bytes=settings.max_value_bytes
            ),
            strict=self._strict,
        )
        kept = KeptFunction(activation, stored.step, task.try_number)
        return LoadedFunction(task, kept, stored.seen)

    def _loaded_kept(self, task: TaskDefinition, kept: KeptFunction) -> LoadedFunction | Failed:
        path, activation = kept.function.path, kept.activation
        with self._engine.database.autocommit_read() as session:
            found = session.calls.ends(
                task.workflow_id,
                task.step_key,
                [call_key(path, number) for number in activation.open_numbers],
            )
        if found is None or found.step.id != task.step_id:
            activation.drop()
            return _retried(task)
        kept.number = task.try_number
        return LoadedFunction(task, kept, found.seen, found.record.ends)

    def rounds(
        self, loaded: LoadedFunction, beat: Beat, open_log: OpenLog | None = None
    ) -> Rounds[Outcome]:
        """Run a function until everything waits; return its report.

        Raises LeaseLost, NotRecorded, and Divergence if its code does not fit its record.
        """
        task, kept = loaded.task, loaded.kept
        calls = InPlaceCalls(
            *(self._engine, task, kept.function, beat, open_log, self._policy, self._find),
            clock=self.clock,
        )
        try:
            report = functools.partial(self._engine.report, task)
            found, loaded.seconds = yield from _advanced(
                *(kept, calls, loaded.ends, loaded.seen, report, self._warn, self.clock)
            )
            if kept.activation.function.is_plain:
                # A greenlet goes on in its own thread alone, and the next activation may be
                # claimed by another one: it replays the record.
                kept.activation.drop()
            return found
        except (DatabaseFailure, StoreError) as problem:
            kept.activation.drop()
            if is_unavailable(problem) or is_deadlock(problem):
                raise NotRecorded(str(problem)) from problem
            # The database refuses these values: repeated without end, the calls would be made again
            # and again. No recorded call is lost: the next activation goes on behind it.
            return Lost(f"the calls of {task.step_path} cannot be recorded: {problem}")
        except BaseException:
            kept.activation.drop()
            raise

    def diverged(self, task: TaskDefinition, problem: Divergence) -> Outcome | None:
        """Return the end of a function whose code does not fit its record.

        None: its run gets an alarm, and the activation waits for code that fits.
        """
        options = getattr(self._find(task.name), "function", None)
        if options is not None and options.on_divergence == "fail":
            return ActivationEnded(ended=_failure(problem))
        log.error(
            "%s",
            problem,
            extra={"action": "function_diverged", "run": task.workflow_id, "facet": task.name},
        )
        text = clipped(f"{DIVERGED} {problem}", _LONGEST_ALARM)
        self._engine.alarms.begin(DIVERGED, {task.workflow_id: text})
        return None

    def _warn(self, kept: KeptFunction, warning: DifferentArguments) -> None:
        """Log once for each function that its code gives a recorded call other arguments."""
        step = kept.function
        if step.id in self._warned:
            return
        self._warned[step.id] = None
        while len(self._warned) > _MAX_WARNED:
            self._warned.popitem(last=False)
        log.warning(
            "%s: %s",
            step.path,
            warning,
            extra={"action": "arguments_differ", "run": step.run_id, "facet": step.facet_name},
        )

    def settle(self, loaded: LoadedFunction, is_accepted: bool) -> None:
        """Keep the coroutine of an activation whose report was accepted; drop it otherwise."""
        activation = loaded.kept.activation
        loaded.kept.seen = loaded.seen
        if is_accepted and self._kept is not None and not activation.is_dropped:
            self._kept.keep(loaded.kept)
        else:
            activation.drop()

    def start_run(self, task: TaskDefinition) -> Outcome:
        """Start the run that a function awaits; raises ChildNotStarted."""
        with self._engine.database.read() as session:
            call = session.steps.by_id(task.step_id)
        if call is None:
            return _failure(MissingCode(task.name))
        name, version = call.facet_name, plan_of_call(call.address).version
        flow = workflow_of_version(name, version)
        if flow is None:
            return _failure(MissingCode(name if version is None else function_facet(name, version)))
        called = WorkflowCall(flow.program(), flow.name, dict(task.data or {}))
        try:
            return start_child(self._engine, task, called)
        except Exception as problem:
            raise ChildNotStarted(task.step_path, called, problem) from problem


def _alone(rounds: Rounds[T]) -> T:
    """Run a function whose calls are not recorded together with those of others."""
    while True:
        try:
            next(rounds)
        except StopIteration as ended:
            found: T = ended.value
            return found


def _advanced(
    kept: KeptFunction,
    calls: InPlaceCalls,
    ends: Sequence[CallEnd],
    seen: int,
    report: Callable[[ActivationEnded], object],
    warn: Callable[[KeptFunction, DifferentArguments], object],
    clock: Callable[[], float],
) -> Rounds[tuple[ActivationEnded, float]]:
    """Run a function, with its calls in place, until it waits for others.

    Return its report, and the seconds between two waits. The clock is a system call: it is not
    asked at all of many waits.

    `report` ends the activation at once, because a call in place has not returned in time.
    """
    activation = kept.activation
    unmade = list(kept.unreported)  # calls that are not recorded, in order, without gaps
    cancelled = list(kept.unreported_cancels)

    def reported(failed: Failed | None, first: int = 0) -> ActivationEnded:
        heard = tuple(activation.numbers.heard)
        reached = Progress(tuple(unmade[first:]), heard, tuple(cancelled), progress.ended)
        # Ends in front of the call are recorded, and not told yet.
        return report_of(reached, seen, failed, is_partial=first > 0)

    began, rounds = clock(), 0
    progress = activation.advance(ends)
    seconds = clock() - began
    failed: Failed | None = None
    while True:
        if progress.warning is not None:
            warn(kept, progress.warning)
        unmade += progress.calls
        cancelled += progress.cancelled
        # The first call that is not made here takes those behind it along.
        number = 0 if failed or progress.ended else calls.leading(unmade, cancelled)
        made: list[CallEnd] = []
        for call in unmade[:number]:
            place = len(made)
            end = calls.make(
                call,
                activation.code_of(call.number),
                lambda silent, place=place: report(reported(silent, place)),  # type: ignore[misc]
            )
            if not isinstance(end, CallEnd):
                failed = end
                break
            made.append(end)
        if calls.to_record:
            yield calls
        calls.record_due()
        del unmade[: len(made)]
        if not made:
            break
        rounds += 1
        if rounds > _MEASURED:
            progress = activation.advance(made)
            continue
        began = clock()
        progress = activation.advance(made)
        seconds += clock() - began
    calls.record()
    found = replace(reported(failed), in_place=calls.recorded)
    kept.unreported = unmade[len(found.calls) :]
    left = {call.number for call in kept.unreported}
    kept.unreported_cancels = [number for number in cancelled if number in left]
    return found, seconds / (1 + min(rounds, _MEASURED)) + calls.seconds / (1 + rounds)


def report_of(
    progress: Progress, seen: int, failed: Failed | None = None, *, is_partial: bool = False
) -> ActivationEnded:
    """Return the report of an activation that received the ends of `seen` calls.

    Plain functions have no task: the next activation calls those that are behind other calls.
    """
    most = MAX_NEW_CALLS
    first = 0 if failed is None else 1
    for at, call in enumerate(progress.calls[first:], first):
        if call.kind is CallKind.STEP and call.number not in progress.cancelled:
            most = min(most, at)
            break
    calls, others = progress.calls[:most], progress.calls[most:]
    left = {call.number for call in others}
    return ActivationEnded(
        calls=calls,
        heard=() if left else progress.heard,
        cancelled=tuple(number for number in progress.cancelled if number not in left),
        ended=None if left or progress.ended is None else end_of(progress.ended),
        seen=seen,
        failed=failed,
        is_partial=is_partial or bool(left),
    )


def end_of(ended: FunctionEnd) -> Succeeded | Failed:
    """Return the end of a function as the end of a try that is not repeated."""
    if ended.error is not None:
        return Failed(ended.error, retry=False)
    return Succeeded({RESULT: ended.result}, is_from_code=True)


def _retried(task: TaskDefinition) -> Failed:
    return _failure(RuntimeError(f"{task.step_path} was retried"))  # refused: it is fenced


def _failure(problem: Exception) -> Failed:
    bases: Sequence[str] = [base.__name__ for base in type(problem).__mro__[1:-2]]
    error = {"type": type(problem).__name__, "message": str(problem), "bases": list(bases)}
    return Failed(error, retry=False)
