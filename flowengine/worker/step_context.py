"""The step that the running code is called for, as the code sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import cast

from flowengine.agents.tools_in_place import InPlace
from flowengine.engine import Engine
from flowengine.engine.handles import executing
from flowengine.errors import FlowengineError
from flowengine.evaluator.records import TaskDefinition, id_within
from flowengine.log_context import logged_step
from flowengine.program.nodes import Json
from flowengine.step_logs.try_log import TryLog
from flowengine.worker.cancel_token import CancelToken
from flowengine.worker.progress import written


class NotInAStep(FlowengineError):
    """The code is not called by a worker for a step."""

    def __str__(self) -> str:
        return "current_step() works only inside an event facet that a worker runs"


@dataclass(slots=True, weakref_slot=True, eq=False)  # a frozen one takes four times as long
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
    #: For a model call: makes calls within its try; None: this process makes none.
    in_place: InPlace | None = field(default=None, repr=False)
    _set_overhead: Callable[[float], object] = field(default=lambda _: None, repr=False)
    task: TaskDefinition | None = field(default=None, repr=False)  #: for the engine

    def log(self) -> TryLog | None:
        """Return the log of this try, for what captures its lines; None: they are not kept."""
        return self._log()

    def set_overhead(self, seconds: float) -> None:
        """Set the seconds of the engine in this try: no slow facet, but fewer tasks in a batch."""
        self._set_overhead(seconds)

    @contextmanager
    def as_part(self, name: str, number: int) -> Iterator[None]:
        """Inside, the code is called for a part of the step, with an idempotency key of its own."""
        key = id_within(self.idempotency_key, name, number)
        outer = _current.set(replace(self, idempotency_key=key))
        try:
            yield
        finally:
            _current.reset(outer)

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


#: Log records read the same variable.
_current = cast("ContextVar[StepContext]", logged_step)


def current_step() -> StepContext:
    """Return the step that this code is called for."""
    try:
        return _current.get()
    except LookupError:
        raise NotInAStep from None


class InStep:
    """Makes a step the current one while its facet is called."""

    def __init__(self, context: StepContext, caller: tuple[Engine, str]) -> None:
        self._context, self._caller = context, caller

    def __enter__(self) -> None:
        self._outer = _current.set(self._context), executing.set(self._caller)

    def __exit__(self, *_: object) -> None:
        context, caller = self._outer
        executing.reset(caller)
        _current.reset(context)
