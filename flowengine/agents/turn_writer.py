"""The rows of a decision about a turn: cards, state, calls, deliveries and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowengine.agents.call_runs import CallRuns, outcome_of, result_of
from flowengine.agents.profile_cache import KnownProfile
from flowengine.agents.turn_effects import TurnEffects
from flowengine.engine.control import named_actor
from flowengine.engine.start_request import StartRequest
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.actions import ActionKind
from flowengine.evaluator.records import id_within
from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.agent_calls import AgentCall
from flowengine.store.agent_inbox import Message, marked
from flowengine.store.agent_plans import AgentPlan
from flowengine.store.agent_rows import (
    EndedAgentStep,
    EndedWaitingTool,
    NewAgentEvent,
    NewAgentStep,
    NewCardRow,
    NewWaitingTool,
    TurnUpdate,
)
from flowengine.store.commit_rows import ParentFact
from flowengine.store.commits import CommitPlan
from flowengine.turns import machine
from flowengine.turns.records import Call, Changes, Delivery, Head, NewCard, NewEvent, Turn
from flowengine.turns.states import HeadState, MessageType, TaskStatus, TurnState


class TurnWriter:
    """Adds the rows of decisions to a commit plan.

    The guard of the head refuses the whole commit if the head is not as it was before them.
    """

    def __init__(
        self, runs: CallRuns, plan: CommitPlan, effects: TurnEffects, now: int, messages: str
    ) -> None:
        """`messages` is a HeadMessages."""
        self._runs, self._plan, self._effects, self._now = runs, plan, effects, now
        self._messages = messages
        if plan.agents is None:
            plan.agents = AgentPlan()
        self._rows = plan.agents
        self.requests: list[StartRequest] = []  #: of the runs that the decisions start
        #: Facts for runs that are of no use any more.
        self.cancellations: list[tuple[str, dict[str, Json]]] = []

    def write(self, turn: Turn, known: KnownProfile | None, before: Head, changes: Changes) -> Head:
        """Add a decision; return the head as it is afterwards."""
        rows, now, head = self._rows, self._now, changes.head
        self.add_cards(turn, changes.cards, before.epoch)
        self.add_events(turn, head, changes.events)
        self.save_head(head, before)
        rows.ended_agent_steps += [
            EndedAgentStep(turn.project, step.step_id, step.status, step.tokens, now)
            for step in changes.steps
        ]
        for call in changes.made_in_place:
            self._add_call(turn, call, 0, applied_at=now)  # it belongs to no suspension
            rows.add_edge(turn, "report", "response", call.id, now, step_id=call.step_id)
        for call in changes.ended:
            ending = (call.state, call.ending, call.effective, now)
            rows.ended_calls.append(EndedWaitingTool(turn.project, turn.id, call.id, *ending))
            rows.add_edge(turn, "report", "response", call.id, now, step_id=call.step_id)
        for started in changes.started:
            assert known is not None
            self._start_call(turn, known, started.call, started.asked.arguments, head.epoch)
        self._cancel_runs(turn, changes)
        if changes.model_call is not None:
            assert known is not None
            self._ask(turn, known, changes)
        if changes.delivery is not None:
            (content,) = (c.content for c in changes.cards if c.id == changes.delivery.card_id)
            self.deliver(turn, known, changes.delivery, content)
        elif changes.steps or changes.model_call is not None:
            rows.save_turn(TurnUpdate(turn.project, turn.id, turn.steps, turn.tokens))
        return head

    def add_cards(self, turn: Turn, cards: Sequence[NewCard], epoch: int) -> None:
        """Add cards to the output box of a turn. Their large contents are kept by the turn."""
        encoder = codec.Encoder()
        for card in cards:
            content = encoder.attributes({"content": card.content})
            self._rows.new_cards.append(
                NewCardRow(
                    project_id=turn.project,
                    card_id=card.id,
                    type=card.type,
                    author=turn.agent,
                    agent_turn_id=turn.id,
                    step_id=card.step_id or None,
                    tool_call_id=card.tool_call_id or None,
                    content=content or "",
                    created_at=self._now,
                )
            )
        self._plan.keep_payloads(turn.id, encoder, self._now)
        ids_of = [card.id for card in cards]
        self._rows.append_cards(turn.project, turn.output_box_id, ids_of, turn.id, epoch)

    def append(self, turn: Turn, card_ids: Sequence[str], epoch: int) -> None:
        """Append cards that are stored to the output box of a turn."""
        self._rows.append_cards(turn.project, turn.output_box_id, card_ids, turn.id, epoch)

    def add_events(self, turn: Turn, head: Head, events: Sequence[NewEvent]) -> None:
        """Number events, and count them in the head."""
        for event in events:
            head.events += 1
            body = codec.dump(dict(event.body))
            about = (head.events, event.kind, str(event.body["agent_turn_id"]), body)
            row = NewAgentEvent(turn.project, turn.agent, *about, self._now)
            self._rows.agent_events.append(row)

    def mark(
        self, message: Message, status: str, *, epoch: int | None = None, error: str | None = None
    ) -> None:
        """Move a message on."""
        self._rows.messages.append(marked(message, status, self._now, epoch=epoch, error=error))

    def enter(self, head: Head, tasks: Sequence[TaskDefinition]) -> Head:
        """Let this process enter the next model call of a turn if it holds its task.

        The first call of a turn is entered by its try, which also consumes the turn's message.
        """
        for task in tasks:
            is_next = task.workflow_id == head.run_id and head.status == HeadState.RUNNING
            after = machine.enter(head, task.workflow_id, task.attempt) if is_next else None
            if after is not None:
                self.save_head(after, head)
                return after
        return head

    def save_head(self, head: Head, before: Head) -> None:
        self._rows.save_head(head, before, self._now, self._messages)

    def dispatch(self, turn: Turn, epoch: int) -> None:
        """Write that a turn has begun."""
        turn.state = TurnState.ACTIVE
        self._rows.save_turn(
            TurnUpdate(
                turn.project,
                turn.id,
                turn.steps,
                turn.tokens,
                turn.state,
                turn_epoch=epoch,
                output_box_id=turn.output_box_id,
                output_base_index=turn.base_index,
                deadline=turn.deadline,
                dispatched_at=self._now,
            )
        )

    def _ask(self, turn: Turn, known: KnownProfile, changes: Changes) -> None:
        """Start the run of a model call, unless that of the one before makes it."""
        call, epoch = changes.model_call, changes.head.epoch
        assert call is not None
        key = (turn.project, call.step_id, turn.agent, turn.id, call.number)
        self._rows.new_agent_steps.append(NewAgentStep(*key, epoch, call.run_id, self._now))
        if call.is_in_place:
            return
        report = AgentCall(turn.agent, MessageType.MODEL_RESULT, call.step_id, turn.id, epoch)
        inputs: dict[str, Json] = {"agent": turn.agent, "turn": turn.id, "step": call.number}
        workflow = known.profile.workflow
        self.requests.append(self._runs.request(known, workflow, inputs, turn, call.run_id, report))

    def _start_call(
        self, turn: Turn, known: KnownProfile, call: Call, arguments: Json, epoch: int
    ) -> None:
        self._add_call(turn, call, epoch)
        if call.run_id is None:
            return  # a person decides
        tool = known.profile.tool(call.name)
        assert tool is not None
        assert isinstance(arguments, Mapping)
        report = AgentCall(turn.agent, MessageType.TOOL_RESULT, call.id, turn.id, epoch)
        self.requests.append(
            self._runs.request(known, tool.workflow, arguments, turn, call.run_id, report)
        )

    def _add_call(
        self, turn: Turn, call: Call, epoch: int, *, applied_at: int | None = None
    ) -> None:
        self._rows.new_calls.append(
            NewWaitingTool(
                *(turn.project, turn.id, turn.agent, epoch, self._now, call.id, call.step_id),
                *(call.name, call.model_call_id, call.state, call.run_id, call.approval),
                *(call.after_execution, call.deadline, call.ending, call.position, applied_at),
            )
        )
        self._rows.add_edge(turn, "tool_call", "request", call.id, self._now, step_id=call.step_id)

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
            self.cancellations.append((run_id, fact))
        self._effects.runs += runs

    def _tell(self, run_id: str, fact_id: str, kind: str, fact: dict[str, Json]) -> None:
        """Add a fact to the inbox of a run, which is advanced after the commit."""
        body = codec.dump_value(fact)
        self._plan.parent_facts.append(ParentFact(run_id, run_id, fact_id, kind, body, self._now))
        self._effects.runs.append(run_id)

    def deliver(self, turn: Turn, known: KnownProfile | None, end: Delivery, content: Json) -> None:
        """End a turn; tell the step that waits for it."""
        turn.state = TurnState.FINISHED
        self._rows.save_turn(
            TurnUpdate(
                turn.project,
                turn.id,
                turn.steps,
                turn.tokens,
                turn.state,
                finished_at=self._now,
                task_status=end.status,
                error_code=end.code or None,
                error=end.message or None,
                deliverable_card_id=end.card_id,
            )
        )
        self._effects.ended.append(turn.id)
        if turn.waiting_run_id is not None:
            self._tell_step(turn, turn.waiting_run_id, known, end, content)

    def _tell_step(
        self, turn: Turn, run_id: str, known: KnownProfile | None, end: Delivery, content: Json
    ) -> None:
        fact: dict[str, Json] = {"step_id": turn.waiting_step_id, "step_key": turn.waiting_step_key}
        tells_outcome = known is not None and known.profile.tells_outcome
        if end.status == TaskStatus.SUCCESS or tells_outcome:
            assert known is not None
            kind, encoder = "ChildCompleted", codec.Encoder()
            result = result_of(known, content)
            if tells_outcome:
                result = outcome_of(turn, end, result)
            fact["outputs"] = encoder.attributes({"result": result, "run": turn.id})
            self._plan.keep_payloads(run_id, encoder, self._now)
        else:
            kind = "ChildFailed"
            message = end.message or f"the turn ended with status {end.status}"
            fact["error"] = {"type": "TurnFailed", "message": message, "code": end.code}
        self._tell(run_id, id_within(turn.id, "ended"), kind, fact)
