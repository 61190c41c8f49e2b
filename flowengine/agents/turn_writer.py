"""The rows of a decision about a turn: cards, state, calls, deliveries and events."""

from __future__ import annotations

from collections.abc import Mapping

from flowengine.agents.call_runs import CallRuns, outcome_of, result_of
from flowengine.agents.profile_cache import KnownProfile
from flowengine.agents.turn_effects import TurnEffects
from flowengine.engine.control import named_actor
from flowengine.evaluator.actions import ActionKind
from flowengine.evaluator.records import id_within
from flowengine.program.nodes import Json
from flowengine.store import Session, codec
from flowengine.store.agent_calls import AgentCall
from flowengine.store.cards import Card
from flowengine.turns.records import Call, Changes, Delivery, Head, Turn
from flowengine.turns.states import MessageType, TaskStatus


class StaleTurn(Exception):
    """The guard refused a write: the transaction is rolled back, and nothing follows."""


class TurnWriter:
    """Writes in a transaction that has locked the head of the turn's agent."""

    def __init__(self, runs: CallRuns, session: Session, effects: TurnEffects, now: int) -> None:
        self._runs, self._session, self._effects, self._now = runs, session, effects, now

    def write(self, turn: Turn, known: KnownProfile | None, changes: Changes) -> Head:
        """Write cards, then state, then events; the guard refuses all of it, or nothing.

        Returns the head as it is afterwards.
        """
        session, now, head = self._session, self._now, changes.head
        turns, project = session.agent_turns, turn.project
        first = head.events + 1
        head.events += len(changes.events)
        epoch = changes.before[0]
        if changes.cards:
            session.cards.add(
                project,
                turn.id,
                [
                    Card(c.id, c.type, turn.agent, turn.id, c.step_id, c.tool_call_id, c.content, 0)
                    for c in changes.cards
                ],
                now,
            )
            ids = [card.id for card in changes.cards]
            session.cards.append(project, turn.output_box_id, ids, turn.id, epoch)
        # Invariant: under the head's lock the guard holds. It is stated all the same, because a
        # database that is restored, or a defect, must not mix two turns.
        if not session.agent_heads.save(head, changes.before, now):
            raise StaleTurn(turn.id)
        for ended in changes.steps:
            turns.end_step(project, ended, now)
        for call in changes.ended:
            turns.end_call(turn, call, now)
            turns.add_edge(turn, "report", "response", call.id, now, step_id=call.step_id)
        for started in changes.started:
            assert known is not None
            self._start_call(turn, known, started.call, started.asked.arguments, head.epoch)
        self._cancel_runs(turn, changes)
        if changes.model_call is not None:
            assert known is not None
            self._ask(turn, known, changes)
        if changes.delivery is None:
            turns.count(turn)
        else:
            self.deliver(turn, known, changes.delivery)
        turns.add_events(project, turn.agent, first, changes.events, now)
        return head

    def _ask(self, turn: Turn, known: KnownProfile, changes: Changes) -> None:
        """Start the run of a model call."""
        call, epoch = changes.model_call, changes.head.epoch
        assert call is not None
        self._session.agent_turns.begin_step(turn, call, epoch, self._now)
        report = AgentCall(turn.agent, MessageType.MODEL_RESULT, call.step_id, turn.id, epoch)
        inputs: dict[str, Json] = {"agent": turn.agent, "turn": turn.id, "step": call.number}
        workflow = known.profile.workflow
        self._effects.requests.append(
            self._runs.request(known, workflow, inputs, turn, call.run_id, report)
        )

    def _start_call(
        self, turn: Turn, known: KnownProfile, call: Call, arguments: Json, epoch: int
    ) -> None:
        turns, now = self._session.agent_turns, self._now
        turns.add_call(turn, call, epoch, now)
        turns.add_edge(turn, "tool_call", "request", call.id, now, step_id=call.step_id)
        if call.run_id is not None:
            self._start_tool(turn, known, call, arguments, epoch)

    def _start_tool(
        self, turn: Turn, known: KnownProfile, call: Call, arguments: Json, epoch: int
    ) -> None:
        """Start the run of a tool's call."""
        tool = known.profile.tool(call.name)
        assert tool is not None
        assert call.run_id is not None
        assert isinstance(arguments, Mapping)
        report = AgentCall(turn.agent, MessageType.TOOL_RESULT, call.id, turn.id, epoch)
        self._effects.requests.append(
            self._runs.request(known, tool.workflow, arguments, turn, call.run_id, report)
        )

    def _cancel_runs(self, turn: Turn, changes: Changes) -> None:
        """Tell the runs of calls that are of no use to end: a fact in the inbox of each."""
        runs = [call.run_id for call in changes.canceled if call.run_id]
        if changes.canceled_run is not None:
            runs.append(changes.canceled_run)
        for run_id in runs:
            fact: dict[str, Json] = {
                "id": id_within(run_id, "ended by its turn"),
                "kind": ActionKind.CANCEL.value,
                "step_key": "",
                "actor": named_actor(""),
                "reason": f"turn {turn.id} of agent {turn.agent} does not wait for it any more",
                "at": self._now,
                "options": {},
            }
            self._session.inbox.add_fact(str(fact["id"]), run_id, "Action", fact, self._now)
        self._effects.runs += runs

    def deliver(self, turn: Turn, known: KnownProfile | None, end: Delivery) -> None:
        """End a turn; tell the step that waits for it."""
        ending = (end.status, end.code, end.message, end.card_id)
        if not self._session.agent_turns.finish(turn, *ending, self._now):
            raise StaleTurn(turn.id)
        self._effects.ended.append(turn.id)
        if turn.waiting_run_id is not None:
            self._tell_step(turn, known, end)

    def _tell_step(self, turn: Turn, known: KnownProfile | None, end: Delivery) -> None:
        run_id = turn.waiting_run_id
        assert run_id is not None
        card = self._session.cards.get(turn.project, end.card_id)
        assert card is not None
        fact: dict[str, Json] = {"step_id": turn.waiting_step_id, "step_key": turn.waiting_step_key}
        tells_outcome = known is not None and known.profile.tells_outcome
        if end.status == TaskStatus.SUCCESS or tells_outcome:
            assert known is not None
            kind, encoder = "ChildCompleted", codec.Encoder()
            result = result_of(known, card.content)
            if tells_outcome:
                result = outcome_of(turn, end, result)
            answer = {"result": result, "run": turn.id}
            fact["outputs"] = encoder.attributes(answer)
            for digest, body in sorted(encoder.payloads.items()):
                self._session.cards.keep_payload(run_id, digest, body, self._now)
        else:
            kind = "ChildFailed"
            message = end.message or f"the turn ended with status {end.status}"
            fact["error"] = {"type": "TurnFailed", "message": message, "code": end.code}
        fact_id = id_within(turn.id, "ended")
        self._session.inbox.add_fact(fact_id, run_id, kind, fact, self._now)
        self._effects.runs.append(run_id)
