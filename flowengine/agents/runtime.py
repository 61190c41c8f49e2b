"""Agents of one engine: send, stop, approve, report, read; and what recovery does for them."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Connection

from flowengine.agents.agent_messages import stop_message
from flowengine.agents.call_runs import CallRuns, result_of
from flowengine.agents.calls import Calls
from flowengine.agents.drafts import Draft
from flowengine.agents.enqueue import Enqueued, Enqueuer, NewTurn, WaitingStep
from flowengine.agents.first_messages import FirstMessages
from flowengine.agents.handles import TurnHandle
from flowengine.agents.head_cache import HeadCache
from flowengine.agents.head_commit import MessageFailed
from flowengine.agents.join_ends import JoinEnds
from flowengine.agents.join_targets import parent_of
from flowengine.agents.joined_ends import JoinedEnds
from flowengine.agents.profile_cache import ProfileCache
from flowengine.agents.recovery import AgentRecovery
from flowengine.agents.turn_call import TurnCall
from flowengine.agents.turn_commits import TurnCommits
from flowengine.agents.turn_effects import TurnEffects
from flowengine.agents.views import draft_of, turn_page
from flowengine.engine.engine import Engine
from flowengine.engine.staging import AgentKey, ContinuationPolicy
from flowengine.errors import InvalidInputs, UnknownTurn
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.records import derived_id
from flowengine.program.nodes import Json
from flowengine.store import Session
from flowengine.store.agent_lists import CallInfo
from flowengine.store.agent_turns import AgentEvent, TurnInfo
from flowengine.store.caller_transaction import SqlalchemyTransaction
from flowengine.store.commits import CommitPlan, CommitRefused
from flowengine.store.failures import is_unavailable
from flowengine.turns.states import TaskStatus

log = logging.getLogger("flowengine")
P = ParamSpec("P")
R = TypeVar("R")
_NAME = "agents"
_MAX_CALLS = 10_000  # of one turn that are read
_MAX_ADVANCES = 1_000  # of agents and runs after one commit; recovery does the rest

_lock = threading.Lock()


def agents_of(engine: Engine) -> Agents:
    """Return the agents of an engine; the first call lets the engine wake and recover them."""
    with _lock:
        found = engine.attached.get(_NAME)
        if found is None:
            found = engine.attached[_NAME] = Agents(engine)
            engine.after_commit.wake_agent = found.wake
            engine.committer.join_ends = found.join_ends
            engine.recovery_jobs[_NAME] = found.recover
        assert isinstance(found, Agents)
        return found


class Agents:
    """The agents in one engine's database. Shared by all threads of a process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.profiles = ProfileCache(engine.programs)
        self.completions = engine.completions
        self.runs = CallRuns(engine, self.profiles)
        self.heads = HeadCache()
        self._commits = TurnCommits(engine.database, self.runs, self.heads)
        self._enqueuer = Enqueuer(engine.settings)
        self._first_messages = FirstMessages(self.runs, self.profiles, self._enqueuer)
        self._calls = Calls(engine.database, self.runs, engine.settings)
        self.recover = AgentRecovery(self, engine).recover

    # --- messages ---

    def send(
        self, new: NewTurn, read: Callable[[Json], R] | None = None, connection: Any = None
    ) -> TurnHandle[R]:
        """Send a message to an agent; it is durable when this returns."""
        is_named, new = bool(new.agent), self._addressed(new)
        if connection is not None:
            return self._send_within(connection, new, read)
        return self._handle(new, self._sent(new, has_own_agent=not is_named), read)

    def _sent(self, new: NewTurn, *, has_own_agent: bool) -> Enqueued:
        """Send a message in a transaction of its own.

        `has_own_agent`: the id of the agent is derived from the message, so the agent is new,
        unless the message is sent again.
        """
        database, sent = self._engine.database, None
        # On SQLite the queries before an insert are no round trips: the lock is taken at once.
        if has_own_agent and database.has_server and not (new.clone_of or new.inherited_box_id):
            with suppress(CommitRefused), database.optimistic() as session:
                sent = self._first_messages.send(session, new)
        if sent is None:
            with database.write() as session:
                sent = self._enqueue(session, new)
        answer, effects = sent
        self._finish(effects)
        return answer

    def _enqueue(
        self, session: Session, new: NewTurn, *, is_callers: bool = False
    ) -> tuple[Enqueued, TurnEffects]:
        """Enqueue a turn, and dispatch it if its agent is idle.

        In the caller's transaction only if it must not wait: a dispatch may fail after the rows of
        the message, and it locks rows of programs, which other transactions need.
        """
        answer, effects = self._enqueuer.enqueue(session, new)
        if answer.head is not None and (not is_callers or new.when_busy == "refuse"):
            self._commits.lease(session, answer.head, effects)
        elif answer.head is not None:
            effects.agents.append((new.project, new.agent))
        return answer, effects

    def _addressed(self, new: NewTurn) -> NewTurn:
        project = new.project or self._engine.settings.tenant
        own = (project, "agent", new.profile.facet, new.key or uuid.uuid4().hex)
        agent = new.agent or derived_id(*own)
        return replace(new, project=project, agent=agent)

    def _send_within(
        self, connection: Any, new: NewTurn, read: Callable[[Json], R] | None
    ) -> TurnHandle[R]:
        """Enqueue inside the caller's transaction; the agent is woken after its commit."""
        transaction = (
            SqlalchemyTransaction(connection) if isinstance(connection, Connection) else connection
        )
        executor = transaction.executor
        if executor is None:
            problem = "a message cannot be sent inside a transaction of another database"
            raise InvalidInputs(new.profile.facet, [f"{problem}; send it after the commit"])
        with self._engine.database.within(executor, transaction.errors) as session:
            answer, effects = self._enqueue(session, new, is_callers=True)
        transaction.after_commit(lambda: self._finish(effects))
        return self._handle(new, answer, read)

    def _handle(
        self, new: NewTurn, answer: Enqueued, read: Callable[[Json], R] | None
    ) -> TurnHandle[R]:
        return TurnHandle(self, new.project, answer.turn_id, read, duplicate=answer.duplicate)

    def ask(self, task: TaskDefinition, call: TurnCall) -> str:
        """Enqueue the turn that a step waits for; return its id. Idempotent: ids follow the step.

        The turn of a tool's call is one deeper than the turn that called the tool.
        """
        turn_id = derived_id(task.step_id, "turn")
        with self._engine.database.read() as session:
            project, parent = parent_of(session, task.workflow_id)
        new = NewTurn(
            project=project,
            agent=call.agent_id or derived_id(task.step_id, "agent"),
            profile=call.profile,
            instruction=call.instruction,
            key=turn_id,
            depth=0 if parent is None else parent.depth + 1,
            trace_id="" if parent is None else parent.trace_id,
            parent_turn_id=None if parent is None else parent.id,
            source=task.step_path[:255] if parent is None else parent.agent,
            step=WaitingStep(task.workflow_id, task.step_id, task.step_key),
            turn_id=turn_id,
            clone_of=call.clone_of,
            inherited_box_id=call.context_box_id,
        )
        self._sent(new, has_own_agent=not call.agent_id)
        if call.join:
            JoinEnds(self, self._engine).begin(project, turn_id, task, call.join)
        return turn_id

    def stop(
        self,
        project: str,
        turn_id: str,
        reason: str = "",
        *,
        by: str = "",
        code: str = "stopped",
        status: str = TaskStatus.CANCELED,
    ) -> None:
        """End a turn, or keep it from ever running. A turn that has ended stays as it is."""
        with self._engine.database.write() as session:
            turn = session.agent_turns.get(project, turn_id)
            if turn is None:
                raise UnknownTurn(turn_id)
            now = session.now()
            text = reason or "it was stopped"
            session.agent_inbox.add(stop_message(turn, code, text, status, now, by=by))
            agent = turn.agent
        self._advance([(project, agent)])

    def approve(
        self, project: str, turn_id: str, call_id: str, *, by: str, arguments: Json = None
    ) -> None:
        """Let a call that waits for a person begin. Raises CallRefused."""
        self._finish(self._calls.approve(project, turn_id, call_id, by=by, arguments=arguments))

    def reject(self, project: str, turn_id: str, call_id: str, *, by: str, reason: str) -> None:
        """Refuse a call that waits for a person. Raises CallRefused."""
        self._finish(self._calls.reject(project, turn_id, call_id, by=by, reason=reason))

    def report(
        self, project: str, turn_id: str, call_id: str, result: Json = None, **options: Any
    ) -> bool:
        """Give the result of a call from outside; True: it had one already (duplicate)."""
        duplicate, effects = self._calls.report(project, turn_id, call_id, result, **options)
        self._finish(effects)
        return duplicate

    # --- reading ---

    def turn(self, project: str, turn_id: str) -> TurnInfo:
        with self._engine.database.autocommit_read() as session:
            found = session.agent_turns.info(project, turn_id)
        if found is None:
            raise UnknownTurn(turn_id)
        return found

    def calls(self, project: str, turn_id: str) -> list[CallInfo]:
        """Return the calls of tools that a turn has made."""
        with self._engine.database.read() as session:
            return session.agent_lists.calls(project, turn_id, _MAX_CALLS)

    def draft(self, project: str, turn_id: str) -> Draft | None:
        """Return the answer that the model of a turn is giving now."""
        with self._engine.database.read() as session:
            found = session.agent_turns.info(project, turn_id)
            if found is None:
                raise UnknownTurn(turn_id)
            return draft_of(session, found)

    def turns(
        self, project: str = "", agent: str | None = None, *, limit: int = 100
    ) -> list[TurnInfo]:
        """Return the newest turns of a project, or of one agent, the newest first."""
        with self._engine.database.read() as session:
            return turn_page(session, project, agent, None, None, limit).turns

    def handle(self, project: str, turn_id: str) -> TurnHandle[Any]:
        """Return the handle of an existing turn."""
        self.turn(project, turn_id)
        return TurnHandle(self, project, turn_id)

    def outcome(self, project: str, turn_id: str) -> tuple[TurnInfo, Json] | None:
        """Return a turn that has ended, with its result, reread from its card; None: it goes on."""
        with self._engine.database.autocommit_read() as session:
            found = session.cards.outcome(project, turn_id)
            if found is None:
                raise UnknownTurn(turn_id)
            if found.deliverable is None:
                return None
            known = self.profiles.get(session, project, found.profile_id)
            assert known is not None
        return found.info, result_of(known, found.deliverable.content)

    def turn_events(self, project: str, turn_id: str, after: int, limit: int) -> list[AgentEvent]:
        with self._engine.database.read() as session:
            return session.agent_turns.turn_events(project, turn_id, after, limit)

    # --- commits ---

    def join_ends(
        self, plan: CommitPlan, now: int, continuation: ContinuationPolicy | None
    ) -> JoinedEnds:
        """Let agents be part of a commit that ends runs of their calls."""
        return JoinedEnds(self.runs, self.heads, plan, now, continuation)

    def wake(
        self, project: str, agent: str, continuation: ContinuationPolicy | None
    ) -> list[TaskDefinition]:
        """Let an agent take in its messages; called after a commit that has written one."""
        return self._advance([(project, agent)], continuation)

    def _finish(
        self, effects: TurnEffects, continuation: ContinuationPolicy | None = None
    ) -> list[TaskDefinition]:
        continued = self._handle_effects(effects, continuation)
        return continued + self._advance(effects.agents, continuation)

    def _advance(
        self, agents: list[AgentKey], continuation: ContinuationPolicy | None = None
    ) -> list[TaskDefinition]:
        """Advance agents one after the other: a loop, and no two heads are locked at once."""
        waiting, continued = deque(dict.fromkeys(agents)), []
        for _ in range(_MAX_ADVANCES):
            if not waiting:
                break
            project, agent = waiting.popleft()
            effects = self._take_in(project, agent, continuation)
            if effects is None:
                continue
            continued += self._handle_effects(effects, continuation)
            waiting += [key for key in effects.agents if key not in waiting]
            if effects.has_more:
                waiting.append((project, agent))
        return continued

    def _take_in(
        self, project: str, agent: str, continuation: ContinuationPolicy | None
    ) -> TurnEffects | None:
        try:
            return self._commits.take_in(project, agent, continuation)
        except MessageFailed as failed:
            message, problem = failed.message, failed.__cause__
            assert isinstance(problem, Exception)
            log.exception(
                "message %s (%s) of agent %s cannot be taken in now",
                message.id,
                message.type,
                agent,
                extra={"action": "agent_message_deferred", "agent": agent},
            )
            return self._commits.put_off(message, problem)
        except Exception as problem:
            if is_unavailable(problem):
                raise
            log.exception(
                "agent %s cannot take in its messages; recovery tries again",
                agent,
                extra={"action": "agent_failed", "agent": agent},
            )
            return None

    def _handle_effects(
        self, effects: TurnEffects, continuation: ContinuationPolicy | None
    ) -> list[TaskDefinition]:
        after_commit = self._engine.after_commit
        self.runs.committed(effects)
        continued = after_commit.finish(effects.commits, continuation) if effects.commits else []
        for run_id in dict.fromkeys(effects.runs):
            advanced = after_commit.consume_inbox(run_id, continuation)
            continued += [] if advanced is None else after_commit.finish([advanced], continuation)
        return continued
