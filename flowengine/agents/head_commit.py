"""One commit of one agent: messages, decisions and deliveries, under the lock of its head."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from flowengine.agents.agent_messages import MessageReader
from flowengine.agents.call_runs import CallRuns
from flowengine.agents.profile_cache import KnownProfile
from flowengine.agents.turn_effects import TurnEffects
from flowengine.agents.turn_writer import StaleTurn, TurnWriter
from flowengine.evaluator.records import id_within
from flowengine.program.nodes import Json
from flowengine.store import Session
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
        self._writer = TurnWriter(runs, session, effects, now)
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
        self.head = self._writer.write(turn, known, changes)

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
            if card.type == CardType.INSTRUCTION and card.turn_id == turn.id  # not inherited ones
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
            raise StaleTurn(turn.id)
        self._writer.deliver(
            turn, self._readable_profile(turn), Delivery(status, card_id, code, reason)
        )

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
