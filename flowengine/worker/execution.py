"""Run one try of a step: call the facet, and turn whatever happens into an outcome.

Invariant: an error of the engine, its database or its broker is never the outcome of a step.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, NoReturn, Protocol, TypeVar, cast

from flowengine.agents import TurnCall
from flowengine.agents.tools_in_place import ToolInPlace
from flowengine.authoring import WorkflowCall, event_facet_named
from flowengine.engine import Engine
from flowengine.errors import MissingCode, RetryAfter
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Outcome, Succeeded
from flowengine.event_loop import LoopCall, event_loop
from flowengine.program.nodes import Json
from flowengine.step_logs.try_log import TryLog
from flowengine.worker.breakers import PERMANENT, TaskPermit
from flowengine.worker.cancel_token import CancelToken
from flowengine.worker.child_starts import ChildNotStarted, start_child
from flowengine.worker.handlers import FindHandler
from flowengine.worker.progress import ProgressReports
from flowengine.worker.step_context import InStep, StepContext
from flowengine.worker.try_errors import ends_thread, failed

C = TypeVar("C", bound=LoopCall)

OpenLog = Callable[[TaskDefinition], TryLog]
_NO_PERMIT = nullcontext()
_CONTINUATIONS = (WorkflowCall, TurnCall)  # a tuple, because `A | B` is made for each check
#: Types of most results. `inspect.isawaitable` takes as long as the call of a small facet.
_NOT_AWAITABLE = frozenset({bool, dict, float, int, list, str, type(None)})


def execute_try(
    engine: Engine,
    task: TaskDefinition,
    beat: Callable[[str | None], bool],
    permit: TaskPermit | None = None,
    find: FindHandler = event_facet_named,
    open_log: OpenLog | None = None,
    within: WithinTries | None = None,
) -> Outcome:
    """Run the facet of a task to its end, and start the workflow that it may return.

    An error of the facet is an outcome like any other, and not raised. Raises `ChildNotStarted`
    for an error of the engine, and an exception that ends the thread, as `SystemExit`.
    """
    if task.data_type:  # an activation of a durable function, or a run that a function awaits
        from flowengine.worker.activations import Activations

        return Activations(engine, find).execute(task, beat, open_log)
    attempt = Attempt(engine, task, beat, permit, find, open_log, within)
    begun = attempt.begin(event_loop().submit)
    if not isinstance(begun, LoopCall):
        return begun
    event_loop().wait(begun)
    return attempt.end(begun.result)


class Attempt:
    """One try: the call of a facet, and the outcome that its end becomes.

    The circuit breaker that gave the permit receives the outcome of the call.
    """

    def __init__(
        self,
        engine: Engine,
        task: TaskDefinition,
        beat: Callable[[str | None], bool],
        permit: TaskPermit | None,
        find: FindHandler = event_facet_named,
        open_log: OpenLog | None = None,
        within: WithinTries | None = None,
    ) -> None:
        """`open_log` makes the log of a try, when its code writes the first line.

        `within` makes calls in place, for the try of a model call.
        """
        self._open_log, self._within = open_log, within
        self._logs: dict[str, TryLog] = {}  #: at most one
        self._engine, self._permit = engine, permit
        self.task = self._task = task
        self._facet = find(task.name)
        self._send_beat = beat
        self._progress: ProgressReports | None = None
        self.overhead = 0.0  #: seconds that the engine took inside the try, with calls in place
        self.last_sign = 0.0  #: when the coroutine began or sent its last heartbeat
        self._token: CancelToken | None = None
        self._has_lost_lease = False

    def begin(self, submit: Callable[[Awaitable[Any]], C]) -> Outcome | C:
        """Call the facet. The coroutine of an async facet is submitted; `end` is called later."""
        with self._in_step():
            try:
                if self._facet is None:
                    raise MissingCode(self._task.name)
                returned = self._facet.call(self._task.data or {})
            except BaseException as problem:
                ended = self._ended(functools.partial(_raise, problem))
            else:
                if type(returned) not in _NOT_AWAITABLE and inspect.isawaitable(returned):
                    return submit(returned)
                ended = self._ended(lambda: returned)
        return self._outcome(ended)

    def end(self, result: Callable[[], Any]) -> Outcome:
        """Return the outcome of a coroutine that has ended. `result` returns or raises its end."""
        with self._in_step():
            ended = self._ended(result)
        return self._outcome(ended)

    def drop(self) -> None:
        """Leave the try without an outcome: its lease is lost, or its task is released."""
        with suppress(asyncio.CancelledError), self._permit or _NO_PERMIT:
            raise asyncio.CancelledError

    def _ended(self, result: Callable[[], Any]) -> Outcome | WorkflowCall | TurnCall:
        try:
            return self._end_of(result)
        finally:
            if self._progress is not None:
                self._progress.flush()

    def _end_of(self, result: Callable[[], Any]) -> Outcome | WorkflowCall | TurnCall:
        facet = self._facet
        try:
            with self._permit or _NO_PERMIT:
                returned = result()
                assert facet is not None
                written = facet.written(returned)
        except BaseException as problem:
            if ends_thread(problem):
                raise
            is_final = isinstance(problem, PERMANENT) or (
                facet and not isinstance(problem, RetryAfter) and facet.is_final(problem)
            )
            return failed(self._engine, self._task, problem, retry=not is_final)
        if isinstance(written, _CONTINUATIONS):
            return written
        return Succeeded(written, is_from_code=facet.validates)

    def _outcome(self, ended: Outcome | WorkflowCall | TurnCall) -> Outcome:
        if not isinstance(ended, _CONTINUATIONS):
            return ended
        try:
            return start_child(self._engine, self._task, ended)
        except Exception as problem:
            raise ChildNotStarted(self._task.step_path, ended, problem) from problem

    def _in_step(self) -> InStep:
        task = self._task
        context = StepContext(
            run_id=task.workflow_id,
            path=task.step_path,
            facet=task.name,
            try_number=task.try_number,
            idempotency_key=task.step_id,
            _beat=self.beat,
            _token=self.cancel_token,
            task=task,
            attempt=task.attempt,
            tenant=task.tenant,
            _log=self._log,
            in_place=None if self._within is None else self,
            _set_overhead=self.set_overhead,
        )
        return InStep(context, (self._engine, task.step_path))

    def lines(self) -> TryLog | None:
        """Return the log of the try, if it has one."""
        return self._logs.get("log")

    def _log(self) -> TryLog | None:
        # Opened when it is asked for: most tries write nothing. The threads of a try write to one
        # log, so the first one counts. Without a lock: a forked child could find it taken.
        if self._open_log is None:
            return None
        return self._logs.get("log") or self._logs.setdefault("log", self._open_log(self._task))

    def call_tools(
        self, answer: Mapping[str, Json], calls: Sequence[ToolInPlace]
    ) -> Mapping[int, Json]:
        assert self._within is not None
        return self._within.call_tools(self, answer, calls)

    @property
    def lease(self) -> tuple[str, int]:
        return self._task.uuid, self._task.lease

    def may_go_on(self, seconds: float) -> bool:
        assert self._within is not None
        return not self._has_lost_lease and self._within.may_go_on(self, seconds)

    def set_overhead(self, seconds: float) -> None:
        self.overhead = seconds

    @property
    def has_log(self) -> bool:
        """Whether the lines of this try are kept."""
        return self._open_log is not None

    def open_same_log(self, _: TaskDefinition) -> TryLog:
        """Return the log of this try for a part of it: its lines are reported together."""
        return cast(TryLog, self._log())

    def beat(self, progress: str | None) -> bool:
        self.last_sign = time.monotonic()
        if progress is None:
            holds = self._send_beat(None)
        else:
            if self._progress is None:
                self._progress = ProgressReports(self._send_beat)
            holds = self._progress.report(progress)
        if not holds:
            self.lose()
        return holds

    def lose(self) -> None:
        """Set the cancel token: the lease is lost."""
        self._has_lost_lease = True
        if self._token is not None:
            self._token.set()

    def cancel_token(self) -> CancelToken:
        """Return the token that `lose` sets."""
        # Created when it is asked for: most tries need none.
        if self._token is None:
            self._token = CancelToken(self._task.step_path)
            if self._has_lost_lease:
                self._token.set()
        return self._token


class WithinTries(Protocol):
    """Makes calls in place within the tries of model calls: see `in_place_tools`."""

    def call_tools(
        self, outer: Attempt, answer: Mapping[str, Json], calls: Sequence[ToolInPlace]
    ) -> Mapping[int, Json]: ...
    def may_go_on(self, outer: Attempt, seconds: float) -> bool: ...


def _raise(problem: BaseException) -> NoReturn:
    raise problem
