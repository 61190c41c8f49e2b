"""One commit of one agent: messages, decisions and deliveries, under the lock of its head."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from flowengine.agents.agent_messages import MessageReader
from flowengine.agents.call_runs import CallRuns
from flowengine.agents.enqueue import instruction_id
from flowengine.agents.head_cache import KnownHead
from flowengine.agents.profile_cache import KnownProfile
from flowengine.agents.turn_effects import TurnEffects
from flowengine.agents.turn_writer import TurnWriter
from flowengine.engine.staging import ContinuationPolicy
from flowengine.evaluator.records import id_within
from flowengine.program.nodes import Json
from flowengine.store import Session
from flowengine.store.agent_inbox import Message
from flowengine.store.agent_rows import HeadMessages
from flowengine.store.commits import CommitPlan
from flowengine.store.failures import is_unavailable
from flowengine.turns import delivery, machine
from flowengine.turns.records import (
    Call,
    CardType,
    Delivery,
    Head,
    NewCard,
    NewEvent,
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
    """One transaction of one agent, whose head is locked. Each decision is one statement."""

    def __init__(
        self,
        runs: CallRuns,
        session: Session,
        head: Head,
        effects: TurnEffects,
        now: int,
        continuation: ContinuationPolicy | None = None,
    ) -> None:
        self._runs, self._session, self._effects, self._now = runs, session, effects, now
        self._continuation = continuation
        self.head = head
        self._reader = MessageReader(session, runs.max_checks)
        self._turns: dict[str, Turn] = {}
        self._calls: list[Call] = []
        self._begin()

    def _begin(self) -> None:
        session = self._session
        self._plan = CommitPlan(rule=session.outbox_rule, notes_of=session.poller_notes)
        # Behind a full portion other messages wait, which an optimistic commit must not overtake.
        messages = HeadMessages.KEPT if self._effects.has_more else HeadMessages.TAKEN
        self._writer = TurnWriter(self._runs, self._plan, self._effects, self._now, messages)

    def _flush(self) -> None:
        """Write what was decided. Raises CommitRefused."""
        writer, effects = self._writer, self._effects
        for run_id, fact in writer.cancellations:
            self._session.inbox.add_fact(str(fact["id"]), run_id, "Action", fact, self._now)
        about = (self._plan, effects, self._now, self._continuation)
        tasks = self._runs.stage(self._session, writer.requests, *about)
        self.head = writer.enter(self.head, tasks)
        self._session.commit(self._plan)
        self._begin()

    @property
    def known(self) -> KnownHead | None:
        """The head after the last decision, with its turn and calls, for the next one."""
        turn = self._turns.get(self.head.turn_id or "")
        return None if turn is None else KnownHead(self.head, turn, self._calls)

    # --- messages ---

    def take_in(self, message: Message) -> None:
        turn = self._turn(message.turn_id)
        if turn is None or message.type not in MessageType.ALL:
            self._mark(message, InboxState.ERROR, error="it names no turn, or has no known type")
            self._flush()
            return
        self._mark(message, InboxState.CONSUMED)
        if message.type == MessageType.STOP and turn.id != self.head.turn_id:
            self._skip(turn, message)
        elif self.head.turn_id == turn.id:  # else it came too late
            known = self._runs.profile(self._session, turn)
            trigger = self._reader.trigger(message, self.head, turn, known)
            if trigger is not None:
                self._decide(turn, known, trigger)
        self._flush()

    def give_up(self, message: Message, why: str) -> None:
        """End the turn of a message that cannot be taken in: it delivers that it has failed."""
        turn = self._turn(message.turn_id)
        self._mark(message, InboxState.ERROR, error=why)
        reason = f"a message of the turn cannot be taken in: {why}"
        if turn is None or turn.state == TurnState.FINISHED:
            pass
        elif message.status == InboxState.QUEUED:
            self._end_queued(turn, Stopped("dispatch_failed", reason, TaskStatus.FAILED))
        elif self.head.turn_id == turn.id:
            stopped = Stopped("resume_retry_exhausted", reason, TaskStatus.FAILED)
            self._decide(turn, None, stopped)
        self._flush()

    # --- decisions ---

    def _decide(self, turn: Turn, known: KnownProfile | None, trigger: Trigger) -> None:
        """`known` may be missing for a stop: its profile may be the part that cannot be read."""
        head, session = self.head, self._session
        calls: Sequence[Call] = ()
        if head.status == HeadState.SUSPENDED:
            calls = session.agent_turns.calls(turn.project, turn.id, head.epoch)
            self._read_results(turn, calls)
        changes = machine.decide(head, turn, calls, trigger, self._runs.rules(known), self._now)
        if changes is not None:
            self.head = self._writer.write(turn, known, head, changes)
            self._calls = changes.calls
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

    # --- queued turns ---

    def dispatch_next(self) -> None:
        """Give an idle agent the oldest turn of its queue. The head is locked: none is missed."""
        while self.head.status == HeadState.IDLE:
            session, head = self._session, self.head
            found = session.agent_inbox.next_turn(head.project, head.agent, head.memory_box_id)
            if found is None:
                return
            message, turn, length = found
            if turn is None or turn.profile_id == "":
                self._mark(message, InboxState.ERROR, error="its turn is not stored")
                self._flush()
                continue
            with blamed(message):
                self._dispatch(turn, message, length)
                self._flush()

    def _dispatch(self, turn: Turn, message: Message, length: int) -> None:
        session, head, now = self._session, self.head, self._now
        known = self._runs.profile(session, turn)
        self._turns[turn.id] = turn
        if head.memory_box_id is not None:
            turn.output_box_id = head.memory_box_id
        turn.base_index = length
        turn.deadline = known.deadline(now)
        changes = machine.dispatch(head, turn)
        epoch = changes.head.epoch
        self._writer.dispatch(turn, epoch)
        self._mark(message, InboxState.PENDING, epoch=epoch)
        self.head, self._calls = self._writer.write(turn, known, head, changes), []
        # The instruction belongs to the memory of the agent: later turns read it there.
        self._writer.append(turn, [instruction_id(turn.id)], epoch)

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
        writer, code, reason, status = self._writer, end.code, end.reason, end.status
        content = delivery.fallback(status, code, reason, "")
        card_id = id_within(turn.id, "card", "deliverable")
        writer.add_cards(turn, [NewCard(card_id, CardType.DELIVERABLE, content)], 0)
        body: dict[str, Json] = {"agent_turn_id": turn.id, "status": status, "error_code": code}
        body |= {"output_box_id": turn.output_box_id, "deliverable_card_id": card_id}
        before, self.head = self.head, replace(self.head)
        writer.add_events(turn, self.head, [NewEvent("task", body)])
        writer.save_head(self.head, before)
        ended = Delivery(status, card_id, code, reason)
        writer.deliver(turn, self._readable_profile(turn), ended, content)

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
        self._writer.mark(message, status, epoch=epoch, error=error or None)
        if status == InboxState.ERROR:
            log.error(
                "message %s (%s) of agent %s cannot be taken in: %s",
                message.id,
                message.type,
                message.agent,
                error,
                extra={"action": "agent_message_refused", "agent": message.agent},
            )
