"""Runs of the calls of agents: one step each, started in the commit that asks for them."""

from __future__ import annotations

from collections.abc import Mapping

from flowengine.agents.profile_cache import KnownProfile, ProfileCache
from flowengine.agents.turn_effects import TurnEffects
from flowengine.engine.engine import Engine
from flowengine.engine.staging import ContinuationPolicy
from flowengine.engine.start_request import StartRequest, start_request
from flowengine.program.nodes import Json
from flowengine.store import Session
from flowengine.store.agent_calls import AgentCall
from flowengine.turns import delivery
from flowengine.turns.records import Delivery, Turn
from flowengine.turns.states import TaskStatus


class CallRuns:
    """Starts the runs of model calls and of tools."""

    def __init__(self, engine: Engine, profiles: ProfileCache) -> None:
        self._engine, self._profiles, self._settings = engine, profiles, engine.settings

    def start(
        self,
        session: Session,
        effects: TurnEffects,
        now: int,
        continuation: ContinuationPolicy | None = None,
    ) -> None:
        """Insert the runs of all calls in one statement; the worker may go on with their tasks."""
        if effects.requests:
            effects.commits += self._engine.starter.insert_with(
                session, effects.requests, now, continuation=continuation
            )

    def profile(self, session: Session, turn: Turn) -> KnownProfile:
        known = self._profiles.get(session, turn.project, turn.profile_id)
        assert known is not None, f"the profile of turn {turn.id} is stored with it"
        return known

    def request(
        self,
        known: KnownProfile,
        workflow: str,
        inputs: Mapping[str, Json],
        turn: Turn,
        run_id: str,
        call: AgentCall,
    ) -> StartRequest:
        """Return the request of the run of one call; raises InvalidInputs, TooLarge, NotJson."""
        return start_request(
            known.prepared(workflow),
            workflow,
            inputs,
            self._settings,
            priority=turn.priority,
            tenant=turn.project,
            run_id=run_id,
            agent_call=call.written(),
        )

    @property
    def max_checks(self) -> int:
        return self._settings.max_schema_checks

    @property
    def tool_timeout(self) -> float:
        return self._settings.agent_tool_timeout


def result_of(known: KnownProfile, content: Json) -> Json:
    """Return the result of a turn as the agent's return annotation has it."""
    values, result = delivery.values_of(content), known.profile.result
    if result is None or not isinstance(values, dict):
        return values
    return values if result.is_object else values.get(delivery.RESULT)


def outcome_of(turn: Turn, end: Delivery, result: Json) -> Json:
    """Return how a turn has ended, as a value for the step that waits for it."""
    is_success = end.status == TaskStatus.SUCCESS
    return {
        "status": end.status,
        "result": result if is_success else None,
        "error_code": end.code,
        "error": "" if is_success else end.message or f"it ended with status {end.status}",
        "agent_id": turn.agent,
        "agent_turn_id": turn.id,
        "output_box_id": turn.output_box_id,
    }
