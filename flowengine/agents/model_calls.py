"""The try of a model call: enter the turn, ask the model.

The answer is the result of the step, so it is recorded once, under the lease of the try. A try may
go on with the next model call: see `model_calls_in_place`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

from flowengine.agents.call_runs import CallRuns
from flowengine.agents.drafts import DraftWriter
from flowengine.agents.entries import CallTry, enter
from flowengine.agents.head_cache import HeadCache
from flowengine.agents.model_calls_in_place import has_all_results, record
from flowengine.agents.profile_cache import ProfileCache
from flowengine.agents.tools_in_place import InPlace, answer_with_results
from flowengine.engine.engine import Engine
from flowengine.engine.handles import executing
from flowengine.errors import GiveUp, ModelError, RetryAfter
from flowengine.log_context import LoggedStep, logged_step
from flowengine.models import Answer, Chunk, Model, ModelRequest
from flowengine.models.protocol import last_of
from flowengine.program.nodes import Json


class _Token(Protocol):
    def check(self) -> None: ...


class _Try(LoggedStep, Protocol):
    """The part of a try's context that is used here; the worker's layer is above."""

    @property
    def attempt(self) -> int: ...
    @property
    def tenant(self) -> str: ...
    @property
    def cancel_token(self) -> _Token: ...
    @property
    def in_place(self) -> InPlace | None: ...
    def set_overhead(self, seconds: float) -> None: ...
    def as_part(self, name: str, number: int) -> AbstractContextManager[object]: ...
    def heartbeat(self, progress: Json = None) -> bool: ...


class _Agents(Protocol):
    """The caches of an engine's agents."""

    profiles: ProfileCache
    heads: HeadCache
    runs: CallRuns


def answer(model: Model, request: ModelRequest, step: _Try) -> Answer:
    """Ask a model; a failure that another request may mend becomes a retry of the step."""
    try:
        return last_of(model.provider, _watched(model, request, step))
    except ModelError as problem:
        demanded = getattr(problem, "retry_after", None)
        if problem.is_transient and demanded is not None:
            raise RetryAfter(float(demanded), str(problem)) from problem
        if not problem.is_transient:
            raise GiveUp(str(problem)) from problem
        raise


def _watched(model: Model, request: ModelRequest, step: _Try) -> Any:
    draft, check = DraftWriter(step.heartbeat), step.cancel_token.check
    for piece in model.stream(request):
        if isinstance(piece, Chunk):
            check()  # a turn that was stopped asks for nothing more
            draft.add(piece)
        yield piece


def call_model(
    model: Model, agents: Callable[[Engine], _Agents], agent: str, turn: str, first: int
) -> dict[str, Json]:
    """Run one model call inside a step, and those that follow in place; return the last answer.

    `first` is the number of the model call that the step was made for.
    """
    inside = executing.get()
    assert inside is not None, "a worker calls it for a step"
    engine, step = inside[0], cast("_Try", logged_step.get())
    ours, call = agents(engine), CallTry(step.tenant, agent, turn, step.run_id, step.attempt)
    began = time.monotonic()
    entered, asked = enter(engine, ours, call), None
    while True:
        asks = time.monotonic()
        step.set_overhead(asks - began - (asked or 0.0))
        number = entered.known.turn.steps
        with nullcontext() if number == first else step.as_part("model", number):
            given = answer(model, entered.request, step)
        if asked is None:
            asked = time.monotonic() - asks  # of the facet; everything else is overhead
        about = (entered.profile, step.in_place, engine.settings)
        written = answer_with_results(given, number, *about)
        took = time.monotonic() - began
        step.set_overhead(took - asked)
        goes_on = (
            step.in_place is not None
            and has_all_results(given, written)
            and step.in_place.may_go_on(took)
            and record(engine, ours, entered, given, written, step.in_place.lease)
        )
        if not goes_on:
            return written
        entered = enter(engine, ours, call)
