"""One commit of one agent: messages, decisions and deliveries, under the lock of its head."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from flowengine.agents.agent_messages import MessageReader
from flowengine.agents.call_runs import CallRuns, outcome_of, result_of
from flowengine.agents.profile_cache import KnownProfile
from flowengine.agents.turn_effects import TurnEffects
from flowengine.engine.control import named_actor
from flowengine.evaluator.actions import ActionKind
from flowengine.evaluator.records import id_within
from flowengine.program.nodes import Json
from flowengine.store import Session, codec
from flowengine.store.agent_calls import AgentCall
from flowengine.store.agent_inbox import Message
from flowengine.store.cards import Card
from flowengine.store.database import is_unavailable
from flowengine.turns import delivery, machine
from flowengine.turns.records import (
    Call,
    CardType,
    Changes,
    Delivery,
    Head,
    NewEvent,
    Rules,
    Stopped,
    Trigger,
    Turn,
)
from flowengine.turns.states import (
    AfterExecution,
    HeadState,
    InboxState,
    MessageType,
    TaskStatus,
    TurnState,
)

log = logging.getLogger("flowengine")


class MessageFailed(Exception):
    """A message could not be taken in; the cause says why. Its transaction is rolled back."""

    def __init__(self, message: Message) -> None:
        super().__init__(message.id)
        self.message = message


@contextmanager
def blamed(message: Message) -> Iterator[None]:
    """Name the message whose consequences cannot be written."""
    try:
        yield
    except Exception as problem:
        if is_unavailable(problem):
            raise
        raise MessageFailed(message) from problem


class HeadCommit:
    """One transaction of one agent, whose head is locked."""

    def __init__(
        self, runs: CallRuns, session: Session, head: Head, effects: TurnEffects, now: int
    ) -> None:
        self._runs, self._session, self._effects, self._now = runs, session, effects, now
        self.head = head
        self._reader = MessageReader(session, runs.max_checks)
        self._turns: dict[str, Turn] = {}

    # --- messages ---

    def take_in(self, message: Message) -> None:
        turn = self._turn(message.turn_id)
        if turn is None or message.type not in MessageType.ALL:
            self._mark(message, InboxState.ERROR, error="it names no turn, or has no known type")
            return
        self._mark(message, InboxState.CONSUMED)
        if message.type == MessageType.STOP and turn.id != self.head.turn_id:
            self._skip(turn, message)
            return
        if self.head.turn_id != turn.id:
            return  # it came too late
        known = self._runs.profile(self._session, turn)
        trigger = self._reader.trigger(message, self.head, turn, known)
        if trigger is not None:
            self._decide(turn, known, trigger)

    def give_up(self, message: Message, why: str) -> None:
        """End the turn of a message that cannot be taken in: it delivers that it has failed."""
        turn = self._turn(message.turn_id)
        self._mark(message, InboxState.ERROR, error=why)
        if turn is None or turn.state == TurnState.FINISHED:
            return
        reason = f"a message of the turn cannot be taken in: {why}"
        if message.status == InboxState.QUEUED:
            self._end_queued(turn, Stopped("dispatch_failed", reason, TaskStatus.FAILED))
        elif self.head.turn_id == turn.id:
            stopped = Stopped("resume_retry_exhausted", reason, TaskStatus.FAILED)
            self._decide(turn, None, stopped)

    # --- decisions ---

    def _decide(self, turn: Turn, known: KnownProfile | None, trigger: Trigger) -> None:
        """`known` may be missing for a stop: its profile may be the part that cannot be read."""
        head, session = self.head, self._session
        calls: Sequence[Call] = ()
        if head.status == HeadState.SUSPENDED:
            calls = session.agent_turns.calls(turn.project, turn.id, head.epoch)
            self._read_results(turn, calls)
        rules = Rules() if known is None else known.profile.rules
        rules = Rules(
            *(rules.max_steps, rules.max_tokens, rules.must_submit),
            tool_timeout=round(self._runs.tool_timeout * 1000),
        )
        changes = machine.decide(head, turn, calls, trigger, rules, self._now)
        if changes is not None:
            self._write(turn, known, changes)
            if head.status == HeadState.DISPATCHED:
                self._consume_start(turn)

    def _read_results(self, turn: Turn, calls: Sequence[Call]) -> None:
        """Read the results of calls that have ended, and that end the turn: it delivers them."""
        for call in calls:
            if call.ending == TaskStatus.SUCCESS and call.effective == AfterExecution.TERMINATE:
                card_id = machine.result_card_id(turn.id, call.id)
                card = self._session.cards.get(turn.project, card_id)
                if card is not None and isinstance(card.content, dict):
                    call.result = card.content.get("result")

    def _consume_start(self, turn: Turn) -> None:
        """Consume the message of a turn that no worker has entered: it would wait for ever."""
        message = self._session.agent_inbox.of_turn(turn.project, turn.id)
        if message is not None and message.status in InboxState.DUE:
            self._mark(message, InboxState.CONSUMED)

    def _write(self, turn: Turn, known: KnownProfile | None, changes: Changes) -> None:
        """Write cards, then state, then events; the guard refuses all of it, or nothing."""
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
            raise _Stale(turn.id)
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
            self._deliver(turn, known, changes.delivery)
        turns.add_events(project, turn.agent, first, changes.events, now)
        self.head = head

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
            self.start_tool(turn, known, call, arguments, epoch)

    def start_tool(
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

    def _deliver(self, turn: Turn, known: KnownProfile | None, end: Delivery) -> None:
        """End a turn; tell the step that waits for it."""
        ending = (end.status, end.code, end.message, end.card_id)
        if not self._session.agent_turns.finish(turn, *ending, self._now):
            raise _Stale(turn.id)
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

    # --- queued turns ---

    def dispatch_next(self) -> None:
        """Give an idle agent the oldest turn of its queue. The head is locked: none is missed."""
        while self.head.status == HeadState.IDLE:
            session, head = self._session, self.head
            message = session.agent_inbox.next_queued(head.project, head.agent)
            if message is None:
                return
            turn = self._turn(message.turn_id)
            if turn is None or turn.profile_id == "":
                self._mark(message, InboxState.ERROR, error="its turn is not stored")
                continue
            with blamed(message):
                self.dispatch(turn, message)

    def dispatch(self, turn: Turn, message: Message) -> None:
        session, head, now = self._session, self.head, self._now
        known = self._runs.profile(session, turn)
        if head.memory_box_id is not None:
            turn.output_box_id = head.memory_box_id
        turn.base_index = session.cards.length(turn.project, turn.output_box_id)
        if known.profile.max_seconds is not None:
            turn.deadline = now + round(known.profile.max_seconds * 1000)
        changes = machine.dispatch(head, turn)
        epoch = changes.head.epoch
        session.agent_turns.dispatch(turn, epoch, now)
        self._mark(message, InboxState.PENDING, epoch=epoch)
        self._write(turn, known, changes)
        # The instruction belongs to the memory of the agent: later turns read it there.
        instructions = [
            card.id
            for card in session.cards.read(turn.project, turn.context_box_id)
            if card.type == CardType.INSTRUCTION
        ]
        session.cards.append(turn.project, turn.output_box_id, instructions, turn.id, epoch)

    def _skip(self, turn: Turn, stop: Message) -> None:
        """Cancel a turn that waits in the queue: it delivers, and never runs."""
        message = self._session.agent_inbox.of_turn(turn.project, turn.id)
        if message is None or message.status != InboxState.QUEUED:
            return  # it has ended
        self._mark(message, InboxState.SKIPPED)
        assert isinstance(stop.payload, dict)
        code, reason = str(stop.payload["code"]), str(stop.payload["reason"])
        self._end_queued(turn, Stopped(code, reason, str(stop.payload["status"])))

    def _end_queued(self, turn: Turn, end: Stopped) -> None:
        """Let a turn deliver that was never dispatched."""
        session, now = self._session, self._now
        code, reason, status = end.code, end.reason, end.status
        content = delivery.fallback(status, code, reason, "")
        card_id = id_within(turn.id, "card", "deliverable")
        card = Card(card_id, CardType.DELIVERABLE, turn.agent, turn.id, None, None, content, 0)
        session.cards.add(turn.project, turn.id, [card], now)
        session.cards.append(turn.project, turn.output_box_id, [card_id], turn.id, 0)
        body: dict[str, Json] = {"agent_turn_id": turn.id, "status": status, "error_code": code}
        body |= {"output_box_id": turn.output_box_id, "deliverable_card_id": card_id}
        head = self.head
        session.agent_turns.add_events(
            turn.project, turn.agent, head.events + 1, [NewEvent("task", body)], now
        )
        before = (head.epoch, head.turn_id)
        head.events += 1
        if not session.agent_heads.save(head, before, now):
            raise _Stale(turn.id)
        self._deliver(turn, self._readable_profile(turn), Delivery(status, card_id, code, reason))

    # --- rows ---

    def _readable_profile(self, turn: Turn) -> KnownProfile | None:
        """Return the profile of a turn; None if this version cannot read it."""
        try:
            return self._runs.profile(self._session, turn)
        except Exception as problem:
            if is_unavailable(problem):
                raise
            return None

    def _turn(self, turn_id: str) -> Turn | None:
        if turn_id not in self._turns:
            found = self._session.agent_turns.get(self.head.project, turn_id)
            if found is None or found.agent != self.head.agent:
                return None
            self._turns[turn_id] = found
        return self._turns[turn_id]

    def _mark(
        self, message: Message, status: str, *, epoch: int | None = None, error: str = ""
    ) -> None:
        self._session.agent_inbox.mark(message, status, self._now, epoch=epoch, error=error or None)
        if status == InboxState.ERROR:
            log.error(
                "message %s (%s) of agent %s cannot be taken in: %s",
                message.id,
                message.type,
                message.agent,
                error,
                extra={"action": "agent_message_refused", "agent": message.agent},
            )


class _Stale(Exception):
    """The guard refused a write: the transaction is rolled back, and nothing follows."""
