"""Joined ends: the commit that ends the run of a call also takes the end in for its agent.

Without this, the end of a call is two commits: that of the run, which writes a message into the
agent's inbox, and that of the agent. A process that has the agent in its head cache makes one of
them: the message is written as consumed, beside its consequences. Both guards are part of the
statement; if one refuses, the ends of the runs are written alone, and the message is taken in under
the lock of the head.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from flowengine.agents.agent_messages import RunEnd, answered, reported
from flowengine.agents.call_runs import CallRuns
from flowengine.agents.head_cache import HeadCache, KnownHead
from flowengine.agents.turn_effects import TurnEffects
from flowengine.agents.turn_writer import TurnWriter
from flowengine.engine.staging import AgentKey, CommitEffects, ContinuationPolicy
from flowengine.evaluator import RunView
from flowengine.evaluator.records import PayloadRef
from flowengine.store import Session
from flowengine.store.agent_calls import AgentCall
from flowengine.store.agent_rows import HeadMessages
from flowengine.store.commits import CommitPlan
from flowengine.store.failures import is_unavailable
from flowengine.turns import machine
from flowengine.turns.states import MessageType, WaitState

log = logging.getLogger("flowengine")


@dataclass
class JoinedEnds:
    """The agents that one commit advances, together with the runs of their calls."""

    runs: CallRuns
    cache: HeadCache
    plan: CommitPlan
    now: int
    continuation: ContinuationPolicy | None
    effects: TurnEffects = field(default_factory=TurnEffects)
    _heads: dict[AgentKey, KnownHead] = field(default_factory=dict)

    def stage(self, session: Session, view: RunView, ended: CommitEffects) -> bool:
        """Add the consequences of a run's end to the commit; False: the agent gets a message."""
        call = AgentCall.read(view.agent_call or "")
        key = (view.tenant, call.agent_id)
        known = self._heads.get(key) or self.cache.take(*key)
        if known is None or not _is_simple(known, call, view):
            return False
        part, effects = CommitPlan(rule=self.plan.rule, notes_of=self.plan.notes_of), TurnEffects()
        if key in self._heads and self.plan.agents is not None:
            part.agents = self.plan.agents.copied()  # with the earlier decision about this agent
        try:
            after = self._decide(session, known, call, view, part, effects)
        except Exception as problem:
            if is_unavailable(problem):
                raise
            log.debug("a message tells agent %s of its call: %s", call.agent_id, problem)
            return False
        if after is None:
            return False
        if key in self._heads:
            self.plan.agents = None
        self._heads[key] = after
        # Before the rows of new runs, which may have ended already and have reports of their own.
        self.plan.consume_agent_report(self.now)
        self.plan.include(part)
        ended.agents.remove(key)
        self._add(effects)
        return True

    def _add(self, effects: TurnEffects) -> None:
        total = self.effects
        total.requests += effects.requests
        total.commits += effects.commits
        total.runs += effects.runs
        total.ended += effects.ended

    def _decide(
        self,
        session: Session,
        known: KnownHead,
        call: AgentCall,
        view: RunView,
        part: CommitPlan,
        effects: TurnEffects,
    ) -> KnownHead | None:
        head, turn, runs, now = known.head, known.turn.copied(), self.runs, self.now
        profile = runs.profile(session, turn)
        end = RunEnd(view.state, dict(view.outputs or {}), dict(view.error or {}))
        if call.message_type == MessageType.MODEL_RESULT:
            trigger = answered(view.id, end, profile, runs.max_checks)
        else:
            trigger = reported(call.correlation_id, end)
        changes = machine.decide(head, turn, known.calls, trigger, runs.rules(profile), now)
        if changes is None:
            return None
        writer = TurnWriter(runs, part, effects, now, HeadMessages.NONE)
        after = writer.write(turn, profile, head, changes)
        tasks = runs.stage(session, writer.requests, part, effects, now, self.continuation)
        after = writer.enter(after, tasks)
        cards = (known.context, known.output, known.room)
        kept = KnownHead(after, turn, changes.calls, *cards)
        kept.append(changes.cards, now)
        return kept

    def committed(self) -> list[CommitEffects]:
        """Return the effects of this part, and keep the agents as they are now."""
        for known in self._heads.values():
            self.cache.keep(known)
        effects, others = self.effects, CommitEffects("")
        self.runs.committed(effects)
        others.told_runs = effects.runs
        idle = [key for key, known in self._heads.items() if known.head.turn_id is None]
        # After the commit: a message that was enqueued before it found a busy agent.
        others.agents = self._with_messages(idle) if idle else []
        return [*effects.commits, others]

    def _with_messages(self, idle: list[AgentKey]) -> list[AgentKey]:
        try:
            return self.runs.with_messages(idle)
        except Exception as problem:  # the commit is made: its other effects must follow
            log.debug("idle agents are woken without a look at their messages: %s", problem)
            return idle


def _is_simple(known: KnownHead, call: AgentCall, view: RunView) -> bool:
    """Whether the cached rows are all that a decision needs.

    A person who decides about a call changes rows without changing the head; large values have to
    be read.
    """
    if known.head.turn_id != call.turn_id:
        return False
    if any(c.approval == "asked" and c.state == WaitState.WAITING for c in known.calls):
        return False
    return not any(map(_is_large, (view.outputs or {}).values()))


def _is_large(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_large, value.values()))
    return isinstance(value, PayloadRef)
