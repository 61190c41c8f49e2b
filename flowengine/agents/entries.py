"""Entries: a try of a model call enters its turn, under the guard of the head, and reads its cards.

A try after a lost one enters under a new epoch; the late first one is refused. Tries that a worker
has claimed together enter their turns together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from flowengine.agents.head_cache import HeadCache, KnownHead
from flowengine.agents.profile_cache import KnownProfile, ProfileCache
from flowengine.agents.prompt import request_of
from flowengine.engine.engine import Engine
from flowengine.errors import TryCancelled
from flowengine.evaluator import TaskDefinition
from flowengine.models import ModelRequest
from flowengine.store import Store
from flowengine.store.agent_heads import Entering
from flowengine.store.agent_inbox import marked
from flowengine.store.agent_plans import AgentPlan
from flowengine.store.agent_rows import HeadMessages, TurnUpdate
from flowengine.store.commits import CommitPlan, CommitRefused
from flowengine.store.failures import is_unavailable
from flowengine.turns import machine
from flowengine.turns.records import Head
from flowengine.turns.states import InboxState

log = logging.getLogger("flowengine")
_OUTAGE_SECONDS = 1.0
_MOST_REFUSALS = 100  # the head has changed as often since it was read: somebody else enters


class _Agents(Protocol):
    """The caches of an engine's agents."""

    profiles: ProfileCache
    heads: HeadCache


class CallTry(NamedTuple):
    """A try of a model call."""

    tenant: str
    agent: str
    turn_id: str
    run_id: str
    attempt: int


class Entered(NamedTuple):
    """A turn that a try has entered for one model call."""

    known: KnownHead
    profile: KnownProfile
    request: ModelRequest


def enter(engine: Engine, agents: _Agents, call: CallTry) -> Entered:
    """Enter a turn for one model call. Raises TryCancelled if the try is stale."""
    while True:
        try:
            known = agents.heads.entered(call.tenant, call.agent, call.run_id, call.attempt)
            if known is None:
                known = _entered(engine.database, call)
            return _request(engine.database, agents, known)
        except Exception as problem:
            # An outage says nothing about the step: the try waits until the database is back.
            if not is_unavailable(problem):
                raise
            log.warning(
                "a model call of turn %s waits for the database: %s",
                call.turn_id,
                problem,
                extra={"action": "model_call_waits", "agent": call.agent},
            )
            time.sleep(_OUTAGE_SECONDS)


def enter_together(engine: Engine, agents: _Agents, tasks: Sequence[TaskDefinition]) -> None:
    """Enter the turns of claimed model calls by one commit; their tries enter what it leaves out.

    A try that is released before it begins is claimed again, and enters again: no recovery.
    """
    database = engine.database
    calls = [
        CallTry(t.tenant, str(data["agent"]), str(data["turn"]), t.workflow_id, t.attempt)
        for t in tasks
        if "agent" in (data := t.data or {}) and "turn" in data
    ]
    with suppress(CommitRefused):
        with database.optimistic() as session:
            rows, now, entered = AgentPlan(), session.now(), list[KnownHead]()
            for place, found in session.agent_heads.entering([call[1:4] for call in calls]):
                after = _after(found, calls[place])
                if after is not None and after != found.head:
                    _add_entry(rows, found, after, now)
                    entered.append(KnownHead(after, found.turn))
            if not entered:
                return
            plan = CommitPlan()
            plan.agents = rows
            session.commit(plan, guarded=True)
        boxes = [
            (known.turn.project, box)
            for known in entered
            for box in (known.turn.context_box_id, known.turn.output_box_id)
        ]
        with database.autocommit_read() as session:
            cards = session.cards.read_boxes(boxes)
        for at, known in enumerate(entered):
            known.remember(*cards[2 * at : 2 * at + 2])
            agents.heads.keep(known)


def _after(found: Entering, call: CallTry) -> Head | None:
    """Return the head after a try has entered; None: it is stale."""
    if found.head.turn_id != call.turn_id:
        return None
    return machine.enter(found.head, call.run_id, call.attempt)


def _entered(database: Store, call: CallTry) -> KnownHead:
    """Enter a turn under the guard of its head; again if the head has changed meanwhile."""
    for _ in range(_MOST_REFUSALS):
        with suppress(CommitRefused), database.optimistic() as session:
            read = session.agent_heads.entering([call[1:4]])
            after = _after(read[0][1], call) if read else None
            if after is None:
                break
            found = read[0][1]
            if after == found.head:
                return KnownHead(after, found.turn)  # by the commit that claimed the task
            plan = CommitPlan()
            plan.agents = AgentPlan()
            _add_entry(plan.agents, found, after, session.now())
            session.commit(plan, guarded=True)
            return KnownHead(after, found.turn)
    raise TryCancelled(f"model call of turn {call.turn_id}")


def _add_entry(rows: AgentPlan, found: Entering, after: Head, now: int) -> None:
    """Add the rows of an entry: the first one of a turn consumes the message that began it."""
    rows.save_head(after, found.head, now, HeadMessages.KEPT)
    is_recovery = after.epoch > found.head.epoch
    if found.started is None or is_recovery:
        recoveries = found.recoveries + is_recovery
        about = TurnUpdate(found.turn.project, found.turn.id, recoveries=recoveries)
        rows.save_turn(about._replace(started_at=found.started or now))
    if found.message is not None and found.message.status == InboxState.PENDING:
        rows.messages.append(marked(found.message, InboxState.CONSUMED, now))


def _request(database: Store, agents: _Agents, known: KnownHead) -> Entered:
    """Return the request of a model call: the head was read first, then profile, then boxes."""
    turn = known.turn
    context, output = known.context, known.output
    with database.autocommit_read() as session:
        profile = agents.profiles.get(session, turn.project, turn.profile_id)
        assert profile is not None
        if context is None or output is None:
            boxes = (turn.context_box_id, turn.output_box_id)
            context, output = session.cards.read_boxes([(turn.project, box) for box in boxes])
            known.remember(context, output)
    agents.heads.keep(known)
    return Entered(known, profile, request_of(profile.profile, turn, context, output))
