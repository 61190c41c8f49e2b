"""The handle of a run: what `start` returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flowengine.engine.results import RunInfo, StepInfo
from flowengine.errors import RunFailed
from flowengine.evaluator.states import RunState
from flowengine.program.nodes import Json

if TYPE_CHECKING:
    from flowengine.engine.engine import Engine

R = TypeVar("R")


class Run(Generic[R]):
    """One execution of a workflow. It is the run's name, not its state: keep the id, and
    `engine.run(id)` gives the handle back in any process."""

    def __init__(
        self, engine: Engine, run_id: str, read: Callable[[Json], R] | None = None
    ) -> None:
        self._engine = engine
        self._read = read  # the author's return annotation: JSON to the value it promises
        self.id = run_id

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    def info(self) -> RunInfo:
        """Return how the run stands."""
        return self._engine.get(self.id)

    @property
    def state(self) -> str:
        return self.info().state

    def steps(self) -> Sequence[StepInfo]:
        return self._engine.steps(self.id)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end and return the result; raise `RunFailed` or `TimeoutError`."""
        return self._result(self.outputs(timeout))

    async def aresult(self, timeout: float | None = None) -> R:
        """Like `result`, without blocking the event loop."""
        look = self._look()
        await self._engine.completions.await_end(self.id, look, timeout)
        return self._result(look.outputs(timeout))

    def outputs(self, timeout: float | None = None) -> dict[str, Json]:
        """Wait for the end and return all outputs by name."""
        look = self._look()
        self._engine.completions.wait(self.id, look, timeout)
        return look.outputs(timeout)

    def _look(self) -> _Look:
        self._engine.notifier.hurry()
        return _Look(self)

    def _result(self, outputs: dict[str, Any]) -> R:
        if self._read is not None:
            return self._read(outputs["result"])
        # A Python workflow returns one value; an AFL workflow has named outputs.
        return outputs["result"] if set(outputs) == {"result"} else outputs  # type: ignore[return-value]


class _Look:
    """Looks whether a run is over, and keeps what it saw last."""

    def __init__(self, run: Run[Any]) -> None:
        self._run = run

    def __call__(self) -> bool:
        self._info = self._run.info()
        return self._info.is_final

    def outputs(self, timeout: float | None) -> dict[str, Json]:
        info = self._info
        if not info.is_final:
            count = info.open_steps
            waits = info.alarm or f"{count} {'step' if count == 1 else 'steps'} outstanding"
            raise TimeoutError(f"run {info.id} has not ended after {timeout} s: {waits}")
        if info.state != RunState.COMPLETED:
            error = info.error or {"path": info.workflow, "type": info.state, "message": ""}
            raise RunFailed(info.id, error["path"], error["type"], error["message"])
        return info.outputs or {}
