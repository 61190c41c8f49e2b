"""Run one try of a step: call the facet, and turn whatever happens into an outcome.

Invariant: an error of the engine, its database or its broker is never the outcome of a step.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from flowengine.agents import TurnCall, agents_of
from flowengine.authoring import WorkflowCall, event_facet_named
from flowengine.engine import Engine
from flowengine.engine.handles import executing
from flowengine.errors import (
    FlowengineError,
    MissingCode,
    ModelOverloaded,
    ModelRateLimited,
    RetryAfter,
)
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.events import RETRY_AFTER
from flowengine.evaluator.triggers import Delegated, Failed, Outcome, Succeeded
from flowengine.event_loop import LoopCall, event_loop
from flowengine.log_context import logged_step
from flowengine.program.limits import clipped
from flowengine.program.nodes import Json
from flowengine.step_logs.try_log import TryLog
from flowengine.worker.breakers import PERMANENT, TaskPermit
from flowengine.worker.cancel_token import CancelToken
from flowengine.worker.handlers import FindHandler
from flowengine.worker.progress import ProgressReports, written

log = logging.getLogger("flowengine")
#: `GreenletExit` is greenlet's, which need not be installed.
_ENDING = frozenset(("SystemExit", "KeyboardInterrupt", "GeneratorExit", "GreenletExit"))
P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=LoopCall)

#: Values in the frame of `on_own_stack_chunk`. A chunk holds 2,000 values, doubled until the frame
#: fits with 1,000 to spare: here 16,000. The rest has room for some hundred calls.
_FRAME_SIZE = 12_000


class NotInAStep(FlowengineError):
    """The code is not called by a worker for a step."""

    def __str__(self) -> str:
        return "current_step() works only inside an event facet that a worker runs"


@dataclass(frozen=True)
class StepContext:
    """The step that this code is called for."""

    run_id: str
    path: str  #: e.g. ``word_count.foreach[3].fetch``
    facet: str
    try_number: int
    #: The same for every try of this step. A service that accepts such keys makes the call once.
    idempotency_key: str
    _beat: Callable[[str | None], bool]
    _token: Callable[[], CancelToken]
    attempt: int = 0  #: grows with every claim of the step's tasks
    tenant: str = ""  #: of the run
    _log: Callable[[], TryLog | None] = field(default=lambda: None, repr=False)

    def log(self) -> TryLog | None:
        """Return the log of this try, for what captures its lines; None: they are not kept."""
        return self._log()

    @property
    def cancel_token(self) -> CancelToken:
        """Set when the result of this try is no longer wanted: for code that takes long."""
        return self._token()

    def heartbeat(self, progress: Json = None) -> bool:
        """Restart the facet's timeout, and show how far the try is.

        `progress` is any small JSON value: a share like 0.4, a text, a map. Readers see it at once.
        Called very often, it is written ten times a second, and the last value always.

        False: the lease is lost (the run was cancelled, the try timed out, or the step was
        answered from outside), and the result of this try will be refused. Stop.
        """
        return self._beat(None if progress is None else written(progress))

    async def aheartbeat(self, progress: Json = None) -> bool:
        """Like `heartbeat`, without blocking the event loop."""
        return await asyncio.to_thread(self.heartbeat, progress)


OpenLog = Callable[[TaskDefinition], TryLog]

#: Log records read the same variable.
_current = cast("ContextVar[StepContext]", logged_step)


def current_step() -> StepContext:
    """Return the step that this code is called for."""
    try:
        return _current.get()
    except LookupError:
        raise NotInAStep from None


class ChildNotStarted(FlowengineError):
    """The engine could not start the run that a facet returned; its call can be made later."""

    def __init__(self, path: str, call: WorkflowCall | TurnCall, problem: Exception) -> None:
        super().__init__(path, call, problem)
        self.path, self.call, self.problem = path, call, problem

    def __str__(self) -> str:
        kind = type(self.problem).__name__
        return f"the child run of {self.path} cannot be started: {kind}: {self.problem}"


def execute_try(
    engine: Engine,
    task: TaskDefinition,
    beat: Callable[[str | None], bool],
    permit: TaskPermit | None = None,
    find: FindHandler = event_facet_named,
    open_log: OpenLog | None = None,
) -> Outcome:
    """Run the facet of a task to its end, and start the workflow that it may return.

    An error of the facet is an outcome like any other, and not raised. Raises `ChildNotStarted`
    for an error of the engine, and an exception that ends the thread, as `SystemExit`.
    """
    if task.data_type:  # an activation of a durable function, or a run that a function awaits
        from flowengine.worker.activations import Activations

        return Activations(engine, find).execute(task, beat, open_log)
    attempt = Attempt(engine, task, beat, permit, find, open_log)
    begun = attempt.begin(event_loop().submit)
    if not isinstance(begun, LoopCall):
        return begun
    event_loop().wait(begun)
    return attempt.end(begun.result)


class _InStep:
    """Makes a step the current one while its facet is called."""

    def __init__(self, context: StepContext, caller: tuple[Engine, str]) -> None:
        self._context, self._caller = context, caller

    def __enter__(self) -> None:
        self._outer = _current.set(self._context), executing.set(self._caller)

    def __exit__(self, *_: object) -> None:
        context, caller = self._outer
        executing.reset(caller)
        _current.reset(context)


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
    ) -> None:
        """`open_log` makes the log of a try, when its code writes the first line."""
        self._open_log = open_log
        self._logs: dict[str, TryLog] = {}  #: at most one
        self._engine, self._task, self._permit = engine, task, permit
        self._facet = find(task.name)
        self._send_beat = beat
        self._progress: ProgressReports | None = None
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
                if inspect.isawaitable(returned):
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
        with suppress(asyncio.CancelledError), self._permit or nullcontext():
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
            with self._permit or nullcontext():
                returned = result()
                assert facet is not None
                written = facet.written(returned)
        except BaseException as problem:
            if _ends_thread(problem):
                raise
            is_final = isinstance(problem, PERMANENT) or (
                facet and not isinstance(problem, RetryAfter) and facet.is_final(problem)
            )
            return _failed(self._engine, self._task, problem, retry=not is_final)
        if isinstance(written, WorkflowCall | TurnCall):
            return written
        return Succeeded(written, is_from_code=facet.validates)

    def _outcome(self, ended: Outcome | WorkflowCall | TurnCall) -> Outcome:
        if not isinstance(ended, WorkflowCall | TurnCall):
            return ended
        try:
            return start_child(self._engine, self._task, ended)
        except Exception as problem:
            raise ChildNotStarted(self._task.step_path, ended, problem) from problem

    def _in_step(self) -> _InStep:
        task = self._task
        context = StepContext(
            run_id=task.workflow_id,
            path=task.step_path,
            facet=task.name,
            try_number=task.try_number,
            idempotency_key=task.step_id,
            _beat=self._beat,
            _token=self._cancel_token,
            attempt=task.attempt,
            tenant=task.tenant,
            _log=self._log,
        )
        return _InStep(context, (self._engine, task.step_path))

    def lines(self) -> TryLog | None:
        """Return the log of the try, if it has one."""
        return self._logs.get("log")

    def _log(self) -> TryLog | None:
        # Opened when it is asked for: most tries write nothing. The threads of a try write to one
        # log, so the first one counts. Without a lock: a forked child could find it taken.
        if self._open_log is None:
            return None
        return self._logs.get("log") or self._logs.setdefault("log", self._open_log(self._task))

    def _beat(self, progress: str | None) -> bool:
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

    def _cancel_token(self) -> CancelToken:
        # Created when it is asked for: most tries need none.
        if self._token is None:
            self._token = CancelToken(self._task.step_path)
            if self._has_lost_lease:
                self._token.set()
        return self._token


def _raise(problem: BaseException) -> NoReturn:
    raise problem


def start_child(engine: Engine, task: TaskDefinition, call: WorkflowCall | TurnCall) -> Outcome:
    """Start the run, or enqueue the turn, that a facet returned; idempotent.

    Raises errors of the engine alone.
    """
    try:
        if isinstance(call, TurnCall):
            return Delegated(agents_of(engine).ask(task, call))
        run_id = engine.start_child(
            task,
            call.program,
            call.workflow,
            call.inputs,
            waits=call.waits,
            on_cancel=call.on_cancel,
        )
    except PERMANENT as problem:
        return _failed(engine, task, problem, retry=False)
    return Delegated(run_id) if call.waits else Succeeded({"result": run_id, "run": run_id})


def _ends_thread(problem: BaseException) -> bool:
    """Whether an exception asks its thread or process to end.

    Other exceptions beside `Exception` are errors of the facet: `asyncio.CancelledError`, which a
    coroutine raises if something it awaits was cancelled, and those of libraries like trio.
    """
    if isinstance(problem, BaseExceptionGroup):
        return any(_ends_thread(inner) for inner in problem.exceptions)
    names = {kind.__name__ for kind in type(problem).__mro__}
    return not isinstance(problem, Exception) and bool(names & _ENDING)


def _failed(engine: Engine, task: TaskDefinition, problem: BaseException, *, retry: bool) -> Failed:
    error = _error(problem, engine.settings.max_error_length)
    log.info(
        "%s failed: %s: %s",
        task.step_path,
        error["type"],
        problem.without_values() if isinstance(problem, FlowengineError) else error["message"],
        extra={"action": "try_failed", "run": task.workflow_id, "facet": task.name},
    )
    return Failed(error, retry=retry)


_ROOTS = (BaseException, object)  #: bases of every error: no handler is for them


def _error(problem: BaseException, most: int) -> dict[str, Any]:
    frames = _user_frames(problem.__traceback__)
    if frames is None and not isinstance(problem, FlowengineError):
        frames = problem.__traceback__  # a defect of this package, and not raised on purpose
    kept = traceback.format_exception(type(problem), problem, frames)
    try:
        message = str(problem)
    except Exception as worse:
        message = f"(its text could not be made: {type(worse).__name__})"
    error: dict[str, Any] = {
        "type": type(problem).__name__,
        "message": clipped(message or type(problem).__name__, most),
        "traceback": "".join(kept)[-most:],
        "bases": [base.__name__ for base in type(problem).__mro__[1:] if base not in _ROOTS],
    }
    if (seconds := _demanded(problem)) is not None:
        error[RETRY_AFTER] = seconds
    return error


def _demanded(problem: BaseException) -> float | None:
    """Return the seconds before the next try that the code demands, or the provider of a model."""
    if isinstance(problem, RetryAfter):
        return problem.seconds
    if isinstance(problem, ModelRateLimited | ModelOverloaded):
        return problem.retry_after
    return None


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """Cut the frames of this package off the beginning of a traceback; None: it has no others."""
    while trace is not None:
        if not trace.tb_frame.f_globals.get("__name__", "").startswith("flowengine."):
            return trace
        trace = trace.tb_next
    return None


def on_own_stack_chunk(function: Callable[P, R]) -> Callable[P, R]:
    """Call a function at the beginning of a new chunk of Python's data stack.

    CPython keeps frames in chunks, allocates a chunk when the current one is full, and frees it
    when its first frame returns. Code that calls functions across the end of a chunk allocates and
    frees memory at every call: thirty times slower, as measured. Below Celery and this package a
    user's function is about eighty calls deep, so the position in the chunk is arbitrary. A frame
    larger than the rest of the chunk begins a new one, with free space behind it.
    """

    def roomy(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    roomy.__code__ = roomy.__code__.replace(co_stacksize=_FRAME_SIZE)
    return functools.wraps(function)(roomy)
