"""The try of a model call: enter the turn, read its cards, ask the model.

The answer is the result of the step, so it is recorded once, under the lease of the try. A try
after a lost one enters under a new epoch; the late first one is refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from flowengine.agents.drafts import DraftWriter
from flowengine.agents.profile_cache import ProfileCache
from flowengine.agents.prompt import request_of
from flowengine.engine.engine import Engine
from flowengine.engine.handles import executing
from flowengine.errors import GiveUp, ModelError, RetryAfter, TryCancelled
from flowengine.log_context import LoggedStep, logged_step
from flowengine.models import Answer, Chunk, Model, ModelRequest
from flowengine.models.protocol import last_of
from flowengine.program.nodes import Json
from flowengine.store.database import is_unavailable
from flowengine.turns import machine
from flowengine.turns.states import InboxState

log = logging.getLogger("flowengine")
_OUTAGE_SECONDS = 1.0


class _Token(Protocol):
    def check(self) -> None: ...


class _Try(LoggedStep, Protocol):
    """The part of a try's context that is used here; the worker's layer is above."""

    @property
    def attempt(self) -> int: ...
    @property
    def cancel_token(self) -> _Token: ...
    def heartbeat(self, progress: Json = None) -> bool: ...


def enter(
    engine: Engine, profiles: ProfileCache, agent: str, turn_id: str, run_id: str, attempt: int
) -> ModelRequest:
    """Enter a turn for one model call; return the request. Raises TryCancelled if it is stale."""
    while True:
        try:
            return _entered(engine, profiles, agent, turn_id, run_id, attempt)
        except Exception as problem:
            # An outage says nothing about the step: the try waits until the database is back.
            if not is_unavailable(problem):
                raise
            log.warning(
                "a model call of turn %s waits for the database: %s",
                turn_id,
                problem,
                extra={"action": "model_call_waits", "agent": agent},
            )
            time.sleep(_OUTAGE_SECONDS)


def _entered(
    engine: Engine, profiles: ProfileCache, agent: str, turn_id: str, run_id: str, attempt: int
) -> ModelRequest:
    database = engine.database
    with database.write() as session:
        run = session.runs.get(run_id)
        project = run.tenant if run is not None else ""
        head = session.agent_heads.lock(project, agent)
        turn = session.agent_turns.get(project, turn_id)
        after = None if head is None else machine.enter(head, run_id, attempt)
        if head is None or after is None or turn is None or head.turn_id != turn_id:
            raise TryCancelled(f"model call of turn {turn_id}")
        now = session.now()
        if not session.agent_heads.save(after, (head.epoch, head.turn_id), now):
            raise TryCancelled(f"model call of turn {turn_id}")
        is_recovery = after.epoch > head.epoch
        session.agent_turns.enter(project, turn_id, now, is_recovery=is_recovery)
        message = session.agent_inbox.of_turn(project, turn_id)
        if message is not None and message.status == InboxState.PENDING:
            session.agent_inbox.mark(message, InboxState.CONSUMED, now)
    # The head first, then the profile, then the boxes.
    with database.read() as session:
        known = profiles.get(session, project, turn.profile_id)
        assert known is not None
        context = session.cards.read(project, turn.context_box_id)
        output = session.cards.read(project, turn.output_box_id)
    return request_of(known.profile, turn, context, output)


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
    model: Model, profiles: Callable[[Engine], ProfileCache], agent: str, turn: str
) -> dict[str, Json]:
    """Run one model call inside a step."""
    inside = executing.get()
    assert inside is not None, "a worker calls it for a step"
    engine, step = inside[0], cast("_Try", logged_step.get())
    request = enter(engine, profiles(engine), agent, turn, step.run_id, step.attempt)
    return answer(model, request, step).to_json()
