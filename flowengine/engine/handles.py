"""The handle of a run, returned by `start`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic_core import to_jsonable_python as to_jsonable

from flowengine.actors import Actor
from flowengine.authoring.facets import Workflow
from flowengine.engine.answers import ASK
from flowengine.engine.history import HistoryEntry
from flowengine.engine.results import RunInfo, StepInfo
from flowengine.errors import RunCancelled, RunFailed, WaitInsideStep
from flowengine.evaluator.states import RunState
from flowengine.program.nodes import Json
from flowengine.store.failures import is_outage
from flowengine.store.shown_values import readable

if TYPE_CHECKING:
    from flowengine.engine.engine import Engine
    from flowengine.engine.run_logs import RunLog

R = TypeVar("R")
log = logging.getLogger("flowengine")

#: The engine and the path of the step that this code is called for, set by the worker.
executing: ContextVar[tuple[Engine, str] | None] = ContextVar("flowengine_executing", default=None)


class Run(Generic[R]):
    """One execution of a workflow.

    The handle holds the run's id, not its state: `engine.run(id)` returns an equal handle in any
    process.
    """

    def __init__(
        self, engine: Engine, run_id: str, read: Callable[[Json], R] | None = None
    ) -> None:
        self._engine = engine
        self._read = read  # converts JSON by the workflow's return annotation
        self.id = run_id

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    @property
    def engine(self) -> Engine:
        return self._engine

    def info(self) -> RunInfo:
        """Return the current state of the run."""
        return self._engine.get(self.id)

    @property
    def state(self) -> str:
        return self._polled().state

    def _polled(self) -> RunInfo:
        """Read the run's row alone: one short query."""
        return self._engine.queries.poll(self.id)

    def steps(self) -> Sequence[StepInfo]:
        return self._engine.steps(self.id)

    def history(self, *, after: int = 0, limit: int = 1_000) -> Sequence[HistoryEntry]:
        """Return the commits of the run behind the revision `after`, in order."""
        return self._engine.history(self.id, after=after, limit=limit)

    async def ahistory(self, *, after: int = 0, limit: int = 1_000) -> Sequence[HistoryEntry]:
        """Like `history`, without blocking the event loop."""
        return await asyncio.to_thread(self.history, after=after, limit=limit)

    def logs(self, **options: Any) -> RunLog:
        """Return the lines that its steps have printed and logged; options as of `engine.logs`.

        It is iterated with ``for`` or ``async for``.
        """
        return self._engine.logs(self.id, **options)

    async def ainfo(self) -> RunInfo:
        """Like `info`, without blocking the event loop."""
        return await asyncio.to_thread(self.info)

    async def asteps(self) -> Sequence[StepInfo]:
        """Like `steps`, without blocking the event loop."""
        return await asyncio.to_thread(self.steps)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end and return the result.

        Raises `RunFailed`, `RunCancelled` or `TimeoutError`.

        An outage of the database does not end the wait. Inside a step of the same engine it does
        not wait: it raises `WaitInsideStep` unless the run has ended.
        """
        return self._result(self.outputs(timeout))

    async def aresult(self, timeout: float | None = None) -> R:
        """Like `result`, without blocking the event loop."""
        return self._result(await self.aoutputs(timeout))

    def outputs(self, timeout: float | None = None) -> dict[str, Json]:
        """Wait for the end and return all outputs by name."""
        check = self._check()
        self._engine.completions.wait(self.id, check, timeout)
        return check.outputs(timeout)

    async def aoutputs(self, timeout: float | None = None) -> dict[str, Json]:
        """Like `outputs`, without blocking the event loop."""
        check = await asyncio.to_thread(self._check)
        await self._engine.completions.await_end(self.id, check, timeout)
        return check.outputs(timeout)

    def send(self, name: str, value: Any = None, *, actor: str = "") -> None:
        """Answer the step that waits for `name`, or will; raises AnswerRefused."""
        self._engine.send(self.id, name, to_jsonable(value), actor=actor)

    def cancel(self, *, reason: str = "", actor: Actor | str = "", key: str | None = None) -> None:
        """Cancel the run: its always blocks run, then it is CANCELLED; raises ActionRefused.

        Cancelling a run that is cancelled already changes nothing. `actor` is a person's name, or
        an `Actor`; a second action with the same `key` changes nothing.
        """
        self._engine.control.cancel(self.id, reason=reason, actor=actor, key=key)

    def hold(self, *, reason: str = "", actor: Actor | str = "", key: str | None = None) -> None:
        """Keep workers from the run's tasks; those that run may end. Raises ActionRefused."""
        self._engine.control.hold(self.id, reason=reason, actor=actor, key=key)

    def release(self, *, reason: str = "", actor: Actor | str = "", key: str | None = None) -> None:
        """Let workers claim the tasks of a held run again. Raises ActionRefused."""
        self._engine.control.release(self.id, reason=reason, actor=actor, key=key)

    def retry(
        self,
        *,
        from_step: str | None = None,
        program: Any = None,
        reason: str = "",
        actor: Actor | str = "",
        key: str | None = None,
    ) -> None:
        """Run the failed steps again, and those skipped because of them; raises ActionRefused.

        With `from_step`, the path of a step, that step and every step that depends on it run
        again. With `program`, a workflow of today's code, the run moves to its program.
        """
        self._engine.retry(
            self.id,
            from_step=from_step,
            program=program_of(program),
            reason=reason,
            actor=actor,
            key=key,
        )

    def skip(
        self, step: str, *, reason: str = "", actor: Actor | str = "", key: str | None = None
    ) -> None:
        """End a step that waits or has failed without a result; the run goes on without it."""
        self._engine.skip(self.id, step, reason=reason, actor=actor, key=key)

    def complete(
        self,
        step: str,
        result: Any = None,
        *,
        reason: str = "",
        actor: Actor | str = "",
        key: str | None = None,
    ) -> None:
        """Give a step that waits or has failed its result, as if its facet had returned it."""
        given = to_jsonable(result)
        self._engine.complete(self.id, step, given, reason=reason, actor=actor, key=key)

    def fork(
        self,
        *,
        from_step: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        program: Any = None,
        reason: str = "",
        actor: Actor | str = "",
        key: str | None = None,
    ) -> Run[R]:
        """Start a new run that keeps the results of this one; raises ActionRefused.

        It runs `from_step` and the steps that depend on it; without a step those that failed, and
        with other `inputs` all of them. This run does not change.
        """
        given = None if inputs is None else {n: to_jsonable(v) for n, v in inputs.items()}
        fork_id = self._engine.forks.fork(
            self.id,
            from_step=from_step,
            inputs=given,
            program=program_of(program),
            reason=reason,
            actor=actor,
            key=key,
        )
        return Run(self._engine, fork_id, self._read)

    async def afork(self, **options: Any) -> Run[R]:
        """Like `fork`, without blocking the event loop."""
        return await asyncio.to_thread(lambda: self.fork(**options))

    async def aretry(self, **options: Any) -> None:
        """Like `retry`, without blocking the event loop."""
        await asyncio.to_thread(lambda: self.retry(**options))

    async def askip(self, step: str, **options: Any) -> None:
        """Like `skip`, without blocking the event loop."""
        await asyncio.to_thread(lambda: self.skip(step, **options))

    async def acomplete(self, step: str, result: Any = None, **options: Any) -> None:
        """Like `complete`, without blocking the event loop."""
        await asyncio.to_thread(lambda: self.complete(step, result, **options))

    async def acancel(
        self, *, reason: str = "", actor: Actor | str = "", key: str | None = None
    ) -> None:
        """Like `cancel`, without blocking the event loop."""
        await asyncio.to_thread(self.cancel, reason=reason, actor=actor, key=key)

    async def ahold(
        self, *, reason: str = "", actor: Actor | str = "", key: str | None = None
    ) -> None:
        """Like `hold`, without blocking the event loop."""
        await asyncio.to_thread(self.hold, reason=reason, actor=actor, key=key)

    async def arelease(
        self, *, reason: str = "", actor: Actor | str = "", key: str | None = None
    ) -> None:
        """Like `release`, without blocking the event loop."""
        await asyncio.to_thread(self.release, reason=reason, actor=actor, key=key)

    async def asend(self, name: str, value: Any = None, *, actor: str = "") -> None:
        """Like `send`, without blocking the event loop."""
        await asyncio.to_thread(self.send, name, value, actor=actor)

    def answer_link(
        self,
        name: str,
        value: Any = ASK,
        *,
        actor: str = "",
        valid_for: timedelta = timedelta(days=7),
    ) -> str:
        """Return a signed link with which its holder gives this answer; see Engine.answer_link."""
        given = value if value is ASK else to_jsonable(value)
        return self._engine.answer_link(self.id, name, given, actor=actor, valid_for=valid_for)

    def _check(self) -> _Check:
        self._engine.notifier.flush()
        check = _Check(self)
        inside = executing.get()
        # Waiting keeps a thread or a pool child, and the awaited run needs one: with every place
        # waiting nothing runs, for ever. Refused always, not only when the last place is taken.
        if inside is not None and inside[0] is self._engine and not check():
            raise WaitInsideStep(self.id, inside[1])
        return check

    def _result(self, outputs: dict[str, Any]) -> R:
        if self._read is not None:
            return self._read(outputs["result"])
        # A Python workflow returns one value; an AFL workflow has named outputs.
        return outputs["result"] if set(outputs) == {"result"} else outputs  # type: ignore[return-value]


def program_of(given: Any) -> Any:
    """Return the program of a workflow function; a program as it is."""
    return given.program() if isinstance(given, Workflow) else given


class _Check:
    """Checks whether a run is over, and keeps the last answer. An outage counts as "not yet"."""

    def __init__(self, run: Run[Any]) -> None:
        self._run = run
        self._info: RunInfo | None = None
        self._outage: Exception | None = None

    def __call__(self) -> bool:
        try:
            self._info = self._run._polled()
        except Exception as problem:
            if not is_outage(problem):
                raise
            if self._outage is None:
                log.warning(
                    "the database cannot be read (%s); still waiting for run %s",
                    problem,
                    self._run.id,
                    extra={"action": "wait_outage", "run": self._run.id},
                )
            self._outage = problem
            return False
        self._outage = None
        return self._info.is_final

    def outputs(self, timeout: float | None) -> dict[str, Json]:
        info = self._info
        if info is None:
            message = f"run {self._run.id} could not be read for {timeout} s: {self._outage}"
            raise TimeoutError(message) from self._outage
        if not info.is_final:
            count = info.open_steps
            waits = info.alarm or f"{count} {'step' if count == 1 else 'steps'} outstanding"
            raise TimeoutError(f"run {info.id} has not ended after {timeout} s: {waits}")
        if info.state != RunState.COMPLETED:
            error = info.error or {"path": info.workflow, "type": info.state, "message": ""}
            if info.state == RunState.CANCELLED:
                raise RunCancelled(info.id, error["message"])
            raise RunFailed(info.id, error["path"], error["type"], error["message"])
        outputs: dict[str, Json] = readable(info.outputs) or {}
        return outputs
