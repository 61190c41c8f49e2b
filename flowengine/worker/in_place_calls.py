"""Calls of durable functions that the thread of the activation makes itself.

A quick call need not have a task: its code runs here, and one INSERT, guarded by the lease of the
activation, records it with its result. The run is neither locked nor advanced, because nothing is
to be decided. Everything else is left to the evaluator: calls that fail, wait, or belong to another
task list, and those whose facet has a circuit breaker, a limit, a cache or a deadline.

Tools of agents are called in place, too: see `in_place_tools`.

After the death of a worker nothing but plain functions is called in place: a call that kills its
worker has a task then, whose losses are counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from flowengine.engine import Engine
from flowengine.evaluator import Step, TaskDefinition
from flowengine.evaluator.function_calls import call_row
from flowengine.evaluator.states import StepState
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.event_loop import LoopCall, event_loop
from flowengine.program.function_calls import CallEnd, CallKind, FunctionCall
from flowengine.store import codec
from flowengine.store.calls import MadeCalls, result_of
from flowengine.store.failures import KeyTaken
from flowengine.store.recovery_queries import TIMEOUT
from flowengine.worker.cancel_token import CancelToken
from flowengine.worker.execution import Attempt, OpenLog
from flowengine.worker.handlers import FindHandler
from flowengine.worker.in_place_policy import InPlacePolicy, leading_steps
from flowengine.worker.time_slice import TimeSlice

#: Calls without effects that one statement records.
MAX_UNRECORDED = 50


class InPlaceCalls:
    """The calls in place of one activation."""

    def __init__(
        self,
        engine: Engine,
        task: TaskDefinition,
        function: Step,
        beat: Callable[[str | None], bool],
        open_log: OpenLog | None,
        policy: InPlacePolicy | None,
        find: FindHandler,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` returns the code of a facet: a poller may have another than the function."""
        self._find = find
        self._engine, self._task, self._function = engine, task, function
        self._beat, self._open_log, self._policy = beat, open_log, policy
        self._slice = None if policy is None else TimeSlice(policy.time_slice, policy.others_wait)
        self._served = None if policy is None else policy.served()
        self._unrecorded: list[Step] = []  #: calls that were made, in order
        self._has_effects = False  #: whether one of them must be recorded before anything follows
        #: Tells whether the last ones were recorded, if that was not waited for.
        self._is_recorded: Callable[[], object] | None = None
        self._refusal: Exception | None = None  #: why its calls were not recorded with others
        self.recorded = 0
        self._clock = clock
        self.seconds = 0.0  #: that their code took, by this clock

    def leading(self, calls: Sequence[FunctionCall], cancelled: Collection[int]) -> int:
        """Return how many of the first calls are to be made here."""
        if cancelled:
            first = next((at for at, one in enumerate(calls) if one.number in cancelled), None)
            calls = calls if first is None else calls[:first]
        if not calls:
            return 0
        if self._policy is None or self._served is None or self._task.losses or self._is_over():
            return leading_steps(calls)
        return self._policy.leading(calls, self._served)

    def _is_over(self) -> bool:
        return self._slice is not None and self._slice.is_over()

    def make(
        self, call: FunctionCall, code: Any, expire: Callable[[Failed], object]
    ) -> CallEnd | Failed | None:
        """Make a call: return its end, or how it failed; None if only a task can make it.

        A call with effects begins when everything before it is recorded. `expire` reports that its
        timeout is over. Raises LeaseLost.
        """
        if call.kind is CallKind.EVENT:
            code = self._find(call.facet) or code
        has_effects, timeout = call.options.effects, call.options.timeout
        if has_effects and (timeout or not self._has_effects):
            self.record()
        elif timeout and self._is_recorded is not None:
            self._await_record()  # another thread may have to record the calls behind it
        step = in_place_row(self._function, call, self._engine.database.now())
        began, mark = time.monotonic(), self._clock()
        if timeout is None or self._policy is None:
            outcome = self._executed(step, call, code, self._beat)
        else:
            outcome = self._timed(step, call, code, expire, timeout)
        seconds = time.monotonic() - began  # a facet that waits for others is no quick one
        self.seconds += self._clock() - mark
        if self._policy is not None and call.kind is CallKind.EVENT:
            self._policy.sizing.count(call.facet, seconds)
        if not isinstance(outcome, Succeeded):
            return outcome
        now = self._engine.database.now()
        # As it is read back: live and replayed alike.
        step.returns = codec.plain(outcome.result)
        step.state, step.updated = StepState.COMPLETE, now
        self._unrecorded.append(step)
        self._has_effects = self._has_effects or has_effects
        return CallEnd(call.number, now, result_of(step.returns))

    @property
    def to_record(self) -> int:
        """How many calls must be recorded before their ends are told; none without effects.

        None after a refusal, too: a statement whose answer was lost may have recorded them.
        """
        return len(self._unrecorded) if self._has_effects and self._refusal is None else 0

    def record_due(self) -> None:
        """Record the calls that must be recorded before their ends are told; raises LeaseLost."""
        if self._refusal is not None:
            raise self._refusal
        if self._has_effects:
            self.record()
        elif len(self._unrecorded) >= MAX_UNRECORDED:
            self.record(wait=False)

    def record(self, *, wait: bool = True) -> None:
        """Record the calls that were made; raises LeaseLost.

        Without `wait` a database server may still be writing them when this returns: calls without
        effects can go on. The next record, or the end of the activation, waits for it.
        """
        if not self._unrecorded and self._is_recorded is None:
            return
        made, self._unrecorded = self._made(), []
        self._has_effects = False
        with self._engine.database.autocommit() as session:
            before, self._is_recorded = self._is_recorded, None
            if before is not None and not before():
                raise LeaseLost
            if made.calls:
                is_recorded = session.calls.insert([made])
                if not wait:
                    self._is_recorded = is_recorded
                elif not is_recorded():
                    raise LeaseLost
        self.recorded += len(made.calls)

    def _made(self) -> MadeCalls:
        task = self._task
        return MadeCalls(task.workflow_id, task.uuid, task.lease, self._unrecorded)

    @staticmethod
    def record_together(engine: Engine, activations: Sequence[InPlaceCalls]) -> None:
        """Record the calls of activations of different runs, which have some, by one commit.

        One that has lost its lease raises that when it goes on. If this raises, the calls of all
        stay to be recorded.
        """
        if not activations:
            return
        with engine.database.autocommit() as session:
            # Nothing that was sent before is waited for: a call with effects has waited for it.
            held = session.calls.insert([one._made() for one in activations])()
        for one in activations:
            if one._task.workflow_id in held:
                one.recorded += len(one._unrecorded)
            else:
                one.refuse(LeaseLost())
            one._unrecorded, one._has_effects = [], False

    def refuse(self, problem: Exception) -> None:
        """Let the activation raise this when it goes on: its calls were not recorded."""
        self._refusal = problem

    def resume(self, paused: float) -> None:
        """Go on after a pause, in which others had the thread: its time slice is its own."""
        if self._slice is not None:
            self._slice.prolong(paused)

    def _await_record(self) -> None:
        unrecorded, self._unrecorded = self._unrecorded, []
        try:
            self.record()
        finally:
            self._unrecorded = unrecorded

    def _record_before_expiry(self) -> None:
        """Record the calls in front of one that takes too long, without a gap.

        Called by another thread, while the one of the activation is inside that call.
        """
        calls, has_effects = self._unrecorded, self._has_effects
        try:
            self.record()
        except (LeaseLost, KeyTaken):
            pass  # the report is refused, too; or a statement whose answer was lost has them
        except BaseException:
            self._unrecorded, self._has_effects = calls, has_effects  # for the next attempt
            raise

    def _timed(
        self,
        step: Step,
        call: FunctionCall,
        code: Any,
        expire: Callable[[Failed], object],
        timeout: float,
    ) -> Succeeded | Failed | None:
        message = f"no activity for more than its timeout of {timeout:g} s"
        silent = Failed({"type": TIMEOUT, "message": message})
        assert self._policy is not None
        timeouts = self._policy.timeouts

        def report() -> None:
            self._record_before_expiry()
            expire(silent)

        with timeouts.over(timeout, report, step.run_id, step.path) as watched:

            def beat(progress: str | None) -> bool:
                watched.beat()
                return not watched.has_expired and self._beat(progress)

            outcome = self._executed(step, call, code, beat)
        if watched.has_expired:
            raise LeaseLost
        return outcome

    def _executed(
        self, step: Step, call: FunctionCall, code: Any, beat: Callable[[str | None], bool]
    ) -> Succeeded | Failed | None:
        task = TaskDefinition(
            uuid=self._task.uuid,
            name=call.facet,
            runner_id=self._task.runner_id,
            workflow_id=step.run_id,
            flow_id=self._task.flow_id,
            step_id=step.id,
            data=codec.plain(call.arguments),  # the code may change it
            step_key=step.key,
            step_path=step.path,
            lease=self._task.lease,
            tenant=self._task.tenant,
        )
        outcome = executed_in_place(self._engine, task, code, beat, self._open_log)
        if outcome is not None:
            return outcome
        if call.kind is CallKind.STEP:
            message = f"{call.facet} continues with a workflow: await the workflow instead"
            return Failed({"type": "FunctionMisuse", "message": message}, retry=False)
        if self._policy is not None:
            self._policy.delegates(call.facet)
        return None


def executed_in_place(
    engine: Engine,
    task: TaskDefinition,
    code: Any,
    beat: Callable[[str | None], bool],
    open_log: OpenLog | None,
    outer: Attempt | None = None,
) -> Succeeded | Failed | None:
    """Run the code of a facet in this thread; None: it continues with a workflow or an agent.

    `outer` is the try that it is a part of, which has the cancel token.
    """
    attempt = _InPlaceAttempt(engine, task, beat, None, lambda _: code, open_log)
    attempt.outer = outer
    begun = attempt.begin(event_loop().submit)
    if isinstance(begun, LoopCall):
        event_loop().wait(begun)
        begun = attempt.end(begun.result)
    if not isinstance(begun, _ENDS):
        return None
    outcome = engine.storable(task.name, task.flow_id, begun)
    assert isinstance(outcome, _ENDS)
    return outcome


_ENDS = (Succeeded, Failed)


class _InPlaceAttempt(Attempt):
    """A try that starts no run: the step that would wait for it has no row yet."""

    outer: Attempt | None = None

    def cancel_token(self) -> CancelToken:
        return super().cancel_token() if self.outer is None else self.outer.cancel_token()

    def _outcome(self, ended: Any) -> Any:
        return ended


class LeaseLost(Exception):
    """Another process has the activation: the coroutine is dropped, nothing is reported."""


class NotRecorded(Exception):
    """The database is unavailable: the activation is repeated behind its last recorded call."""


def in_place_row(function: Step, call: FunctionCall, now: int) -> Step:
    """Return the row of a call in place: large arguments are known by their digest alone."""
    row = call_row(function, call, now)
    if call.size > codec.INLINE_BYTES:
        row.params = {}
    return row
