"""Commits of agents: messages are taken in under the lock of the head.

Claim and effect are one transaction: a message is consumed by the commit that writes its
consequences. Lock order: one head, or one run, and never both. Runs are started in the
transaction, because a new run has no lock to wait for; runs and agents that are to learn something
get an inserted row, and are advanced after the commit.
"""

from __future__ import annotations

import logging

from flowengine.agents.call_runs import CallRuns
from flowengine.agents.head_cache import HeadCache
from flowengine.agents.head_commit import HeadCommit, MessageFailed, blamed
from flowengine.agents.turn_effects import TurnEffects
from flowengine.engine.staging import ContinuationPolicy
from flowengine.program.limits import clipped
from flowengine.store import Session, Store
from flowengine.store.agent_inbox import Message
from flowengine.turns.records import Head
from flowengine.turns.states import InboxState

log = logging.getLogger("flowengine")

_PORTION = 50  # messages of one transaction
_FIRST_WAIT, _LONGEST_WAIT = 1_000, 30_000  # milliseconds between two tries to take a message in
_LONGEST = 1_000  # characters of the reason
_OLDEST = 600_000  # milliseconds after which a message that cannot be taken in ends its turn


class TurnCommits:
    """Takes in the messages of agents."""

    def __init__(self, database: Store, runs: CallRuns, heads: HeadCache) -> None:
        self._database, self._runs, self._heads = database, runs, heads

    def take_in(
        self, project: str, agent: str, continuation: ContinuationPolicy | None = None
    ) -> TurnEffects:
        """Take in the due messages of an agent, and dispatch its next turn if it is idle."""
        effects = TurnEffects()
        with self._database.write() as session:
            head = session.agent_heads.lock(project, agent)
            if head is None:
                return effects
            now = session.now()
            messages = session.agent_inbox.due(project, agent, now, _PORTION)
            effects.has_more = len(messages) == _PORTION
            commit = HeadCommit(self._runs, session, head, effects, now, continuation)
            for message in messages:
                with blamed(message):
                    commit.take_in(message)
            commit.dispatch_next()
        self._heads.keep(commit.known)
        return effects

    def lease(self, session: Session, head: Head, effects: TurnEffects) -> None:
        """Give an idle agent its new turn in the transaction that enqueues it.

        Nobody else can get the agent in between. Raises whatever keeps the turn from beginning.
        """
        commit = HeadCommit(self._runs, session, head, effects, session.now())
        try:
            commit.dispatch_next()
        except MessageFailed as failed:
            raise failed.__cause__ or failed from None

    def put_off(self, message: Message, problem: Exception) -> TurnEffects:
        """Defer a message that cannot be taken in; after a while its turn ends with a failure.

        It must not keep the agent from its other messages, and it may be readable for a newer
        version of the program, so it is tried again for some minutes.
        """
        effects, why = TurnEffects(), clipped(f"{type(problem).__name__}: {problem}", _LONGEST)
        with self._database.write() as session:
            head = session.agent_heads.lock(message.project, message.agent)
            now = session.now()
            if head is None:
                return effects
            commit = HeadCommit(self._runs, session, head, effects, now)
            if now - message.created >= _OLDEST:
                commit.give_up(message, why)
                effects.agents.append((message.project, message.agent))  # for the next ones
            elif message.status in InboxState.DUE:
                effects.agents.append((message.project, message.agent))
                due = now + min(_FIRST_WAIT * 2**message.retries, _LONGEST_WAIT)
                session.agent_inbox.mark(message, InboxState.DEFERRED, now, due=due, error=why)
        return effects
