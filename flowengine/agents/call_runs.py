"""Runs of the calls of agents: one step each, started in the commit that asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowengine.agents.profile_cache import KnownProfile, ProfileCache
from flowengine.agents.turn_effects import TurnEffects
from flowengine.engine.engine import Engine
from flowengine.engine.first_commit import stage_first_commit
from flowengine.engine.staging import AgentKey, ContinuationPolicy
from flowengine.engine.start_request import StartRequest, start_request
from flowengine.evaluator import TaskDefinition
from flowengine.program.nodes import Json
from flowengine.store import Session
from flowengine.store.agent_calls import AgentCall
from flowengine.store.commits import CommitPlan
from flowengine.turns import delivery
from flowengine.turns.records import Delivery, Rules, Turn
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

    def stage(
        self,
        session: Session,
        requests: Sequence[StartRequest],
        plan: CommitPlan,
        effects: TurnEffects,
        now: int,
        continuation: ContinuationPolicy | None,
    ) -> list[TaskDefinition]:
        """Add new runs to a commit; return their tasks that this worker goes on with."""
        # Lock order: programs by digest. Two agents that call the same tools could deadlock.
        for digest, text in sorted({request.digest: request.text for request in requests}.items()):
            self._engine.programs.save(session, digest, text, now)
        staged = [
            stage_first_commit(session, request, plan, now, continuation) for request in requests
        ]
        effects.requests += requests
        effects.commits += staged
        return [task for each in staged for task in each.continued]

    def committed(self, effects: TurnEffects) -> None:
        """Note that runs are stored and that turns have ended, after the commit."""
        engine = self._engine
        for request in effects.requests:
            engine.programs.saved(request.digest)
        for commit in effects.commits:
            if commit.started is not None and commit.continued:
                engine.committer.cache.keep(commit.started)
        for turn_id in effects.ended:
            engine.completions.announce(turn_id)

    def with_messages(self, agents: Sequence[AgentKey]) -> list[AgentKey]:
        """Return those of these agents that have a message."""
        with self._engine.database.autocommit_read() as session:
            return session.agent_inbox.with_messages(agents)

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

    def rules(self, known: KnownProfile | None) -> Rules:
        """Return the limits of a turn; those of no profile if it cannot be read."""
        timeout = round(self._settings.agent_tool_timeout * 1000)
        return Rules(tool_timeout=timeout) if known is None else known.profile.rules(timeout)

    @property
    def max_checks(self) -> int:
        return self._settings.max_schema_checks


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
