"""The try of a model call: enter the turn, read its cards, ask the model.

The answer is the result of the step, so it is recorded once, under the lease of the try. A try
after a lost one enters under a new epoch; the late first one is refused. A try may go on with the
next model call: see `model_calls_in_place`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, cast

from flowengine.agents.call_runs import CallRuns
from flowengine.agents.drafts import DraftWriter
from flowengine.agents.head_cache import HeadCache, KnownHead
from flowengine.agents.model_calls_in_place import needs_nothing_else, record
from flowengine.agents.profile_cache import KnownProfile, ProfileCache
from flowengine.agents.prompt import request_of
from flowengine.agents.tools_in_place import InPlace, answer_with_results
from flowengine.engine.engine import Engine
from flowengine.engine.handles import executing
from flowengine.errors import GiveUp, ModelError, RetryAfter, TryCancelled
from flowengine.log_context import LoggedStep, logged_step
from flowengine.models import Answer, Chunk, Model, ModelRequest
from flowengine.models.protocol import last_of
from flowengine.program.nodes import Json
from flowengine.store import Store
from flowengine.store.agent_inbox import marked
from flowengine.store.agent_plans import AgentPlan
from flowengine.store.agent_rows import (
    HeadMessages,
    TurnUpdate,
)
from flowengine.store.commits import CommitPlan, CommitRefused
from flowengine.store.failures import is_unavailable
from flowengine.turns import machine
from flowengine.turns.states import InboxState

log = logging.getLogger("flowengine")
_OUTAGE_SECONDS = 1.0
_MOST_REFUSALS = 100  # the head has changed as often since it was read: somebody else enters


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
    def count_engine_time(self, seconds: float) -> None: ...
    def set_further_seconds(self, seconds: float) -> None: ...
    def heartbeat(self, progress: Json = None) -> bool: ...


class _Agents(Protocol):
    """The caches of an engine's agents."""

    profiles: ProfileCache
    heads: HeadCache
    runs: CallRuns


class CallTry(NamedTuple):
    """A try of a model call."""

    tenant: str
    run_id: str
    attempt: int


class Entered(NamedTuple):
    """A turn that a try has entered for one model call."""

    known: KnownHead
    profile: KnownProfile
    request: ModelRequest


def enter(engine: Engine, agents: _Agents, agent: str, turn_id: str, step: CallTry) -> Entered:
    """Enter a turn for one model call. Raises TryCancelled if the try is stale."""
    while True:
        try:
            known = agents.heads.entered(step.tenant, agent, step.run_id, step.attempt)
            if known is None:
                known = _entered(engine.database, agent, turn_id, step)
            return _request(engine.database, agents, known)
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


def _entered(database: Store, agent: str, turn_id: str, step: CallTry) -> KnownHead:
    """Enter a turn under the guard of its head; again if the head has changed meanwhile."""
    for _ in range(_MOST_REFUSALS):
        with suppress(CommitRefused), database.optimistic() as session:
            found = session.agent_heads.entering(agent, turn_id, step.run_id)
            head = None if found is None else found.head
            after = None if head is None else machine.enter(head, step.run_id, step.attempt)
            if found is None or head is None or after is None or head.turn_id != turn_id:
                break
            if after == head:
                return KnownHead(head, found.turn)  # entered by the commit that claimed the task
            plan, now = CommitPlan(), session.now()
            plan.agents = rows = AgentPlan()
            rows.save_head(after, head, now, HeadMessages.KEPT)
            is_recovery = after.epoch > head.epoch
            if found.started is None or is_recovery:
                recoveries = found.recoveries + is_recovery
                about = TurnUpdate(found.turn.project, turn_id, recoveries=recoveries)
                rows.save_turn(about._replace(started_at=found.started or now))
            if found.message is not None and found.message.status == InboxState.PENDING:
                rows.messages.append(marked(found.message, InboxState.CONSUMED, now))
            session.commit(plan, guarded=True)
            return KnownHead(after, found.turn)
    raise TryCancelled(f"model call of turn {turn_id}")


def _request(database: Store, agents: _Agents, known: KnownHead) -> Entered:
    """Return the request of a model call: the head was read first, then profile, then boxes."""
    turn = known.turn
    context, output = known.context, known.output
    with database.autocommit_read() as session:
        profile = agents.profiles.get(session, turn.project, turn.profile_id)
        assert profile is not None
        if context is None or output is None:
            boxes = (turn.context_box_id, turn.output_box_id)
            context, output = session.cards.read_both(turn.project, *boxes)
            known.remember(context, output)
    agents.heads.keep(known)
    return Entered(known, profile, request_of(profile.profile, turn, context, output))


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
    model: Model, agents: Callable[[Engine], _Agents], agent: str, turn: str
) -> dict[str, Json]:
    """Run one model call inside a step, and those that follow in place; return the last answer."""
    inside = executing.get()
    assert inside is not None, "a worker calls it for a step"
    engine, step = inside[0], cast("_Try", logged_step.get())
    ours, call = agents(engine), CallTry(step.tenant, step.run_id, step.attempt)
    began = time.monotonic()
    entered = enter(engine, ours, agent, turn, call)
    step.count_engine_time(time.monotonic() - began)
    first_ended = None
    while True:
        given, number = answer(model, entered.request, step), entered.known.turn.steps
        about = (entered.profile, step.in_place, engine.settings)
        written = answer_with_results(given, number, *about)
        now = time.monotonic()
        if first_ended is None:
            first_ended = now
        step.set_further_seconds(now - first_ended)
        goes_on = (
            step.in_place is not None
            and needs_nothing_else(given, written)
            and step.in_place.may_go_on(now - began)
            and record(engine, ours, entered.known, entered.profile, written)
        )
        if not goes_on:
            return written
        entered = enter(engine, ours, agent, turn, call)
