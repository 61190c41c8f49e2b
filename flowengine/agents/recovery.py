"""Recovery of agents: three kinds of rows that a crash left behind, each by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from flowengine.agents.agent_messages import stop_message, timeout_messages
from flowengine.engine.engine import Engine
from flowengine.store.failures import is_unavailable
from flowengine.store.parts import MANY
from flowengine.turns.states import HeadState, TaskStatus

if TYPE_CHECKING:
    from flowengine.agents.runtime import Agents

log = logging.getLogger("flowengine")
P = ParamSpec("P")


class AgentRecovery:
    """The job of agents in each pass of recovery."""

    def __init__(self, agents: Agents, engine: Engine) -> None:
        self._agents, self._database, self._settings = agents, engine.database, engine.settings

    def recover(self) -> None:
        """Do what a crash left undone: due messages, stranded turns, deadlines, unwanted turns."""
        database, settings = self._database, self._settings
        with database.autocommit_read() as session:
            now = session.now()
            before = now - round(1000 * settings.watchdog_interval)
            if not session.agent_heads.has_work(before, now):
                return
        with database.read() as session:
            due = session.agent_inbox.waiting(before, MANY)
            stranded = session.agent_inbox.stranded(MANY)
            expired = session.agent_heads.expired(now, MANY)
            unwanted = session.agent_turns.unwanted(MANY)
        for key in expired:
            self._each("agent", self._expire, *key)
        for project, turn_id, reason in unwanted:
            self._each("turn", self._stop_unwanted, project, turn_id, reason)
        for key in dict.fromkeys([*due, *stranded, *expired]):
            self._each("agent", self._agents.wake, *key, None)

    def _stop_unwanted(self, project: str, turn_id: str, reason: str) -> None:
        self._agents.stop(project, turn_id, reason, code="not_wanted")

    def _each(
        self,
        kind: str,
        act: Callable[Concatenate[str, str, P], object],
        project: str,
        name: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Act; a row that fails does not stop the others, and the next pass finds it again."""
        try:
            act(project, name, *args, **kwargs)
        except Exception as problem:
            if is_unavailable(problem):
                raise
            log.exception(
                "recovery of %s %s failed; the next recovery pass tries again",
                kind,
                f"{name} of project {project}" if project else name,
                extra={"action": "agent_failed", kind: name},
            )

    def _expire(self, project: str, agent: str) -> None:
        """Send messages for calls, and for a turn, that are past their deadlines."""
        with self._database.write() as session:
            head = session.agent_heads.lock(project, agent, wait=False)
            if head is None or head.status != HeadState.SUSPENDED or head.turn_id is None:
                return
            now = session.now()
            turn = session.agent_turns.get(project, head.turn_id)
            assert turn is not None
            if turn.deadline is not None and turn.deadline <= now:
                reason = "the turn has used its budget of seconds"
                message = stop_message(turn, "max_seconds_reached", reason, TaskStatus.TIMEOUT, now)
                session.agent_inbox.add(message)
            calls = session.agent_turns.calls(project, turn.id, head.epoch)
            for message in timeout_messages(turn, calls, head.epoch, now):
                session.agent_inbox.add(message)
