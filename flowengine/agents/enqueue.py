"""Enqueue a turn: its rows, and the dispatch of it if its agent is idle, in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from flowengine.agents.agent_messages import stop_message
from flowengine.agents.profiles import Profile
from flowengine.agents.turn_effects import TurnEffects
from flowengine.errors import AgentBusy, TurnRefused
from flowengine.evaluator.records import derived_id, id_within
from flowengine.program.nodes import Json
from flowengine.settings import Settings
from flowengine.store import Session, codec
from flowengine.store.agent_inbox import Message, new_message
from flowengine.store.agent_plans import AgentPlan
from flowengine.store.agent_rows import (
    NewBox,
    NewCardRow,
)
from flowengine.store.cards import profile_owner
from flowengine.store.commits import CommitPlan
from flowengine.turns.records import CardType, Head, NewCard, Turn
from flowengine.turns.states import HeadState, InboxState, MessageType, TaskStatus

WhenBusy: TypeAlias = Literal["queue", "refuse", "interrupt"]


@dataclass(frozen=True, slots=True)
class WaitingStep:
    """The step of a run that waits for a turn."""

    run_id: str
    step_id: str
    step_key: str


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn to be enqueued."""

    project: str
    agent: str
    profile: Profile
    instruction: str
    key: str | None = None  #: a second one with it returns the first turn
    when_busy: WhenBusy = "queue"
    priority: int = 0
    depth: int = 0
    trace_id: str = ""
    parent_turn_id: str | None = None
    source: str = ""  #: the agent, or whatever else asks
    step: WaitingStep | None = None
    turn_id: str = ""  #: derived from the step that waits
    clone_of: str = ""  #: the agent whose memory a new agent begins with
    inherited_box_id: str = ""  #: a box whose cards come before the instruction


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to an enqueue."""

    turn_id: str
    epoch: int  #: 0 while it waits
    duplicate: bool = False
    head: Head | None = None  #: of an agent that is idle: it gets the turn in this transaction


class Enqueuer:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def enqueue(self, session: Session, new: NewTurn) -> tuple[Enqueued, TurnEffects]:
        """Add a turn to an agent's queue, in the caller's transaction.

        Raises AgentBusy with ``when_busy="refuse"``, and TurnRefused for a turn inside too many
        others. Idempotent by its key.
        """
        self.check(new)
        now, effects = session.now(), TurnEffects()
        # First: so no turn is stranded.
        head = session.agent_heads.create_or_lock(new.project, new.agent, now)
        about = (new.project, new.agent, new.turn_id, new.key)
        before = session.agent_inbox.before_enqueue(*about)
        if before.same is not None:
            return Enqueued(*before.same, duplicate=True), effects
        turn = turn_of(new, max(now, before.last_queued + 1))
        if new.when_busy == "refuse":
            queued = session.agent_inbox.next_queued(new.project, new.agent)
            busy_with = head.turn_id or (None if queued is None else queued.turn_id)
            if busy_with is not None:
                raise AgentBusy(new.agent, busy_with)
        elif new.when_busy == "interrupt" and head.turn_id is not None:
            self._interrupt(session, new, head.turn_id, now, effects)
        plan = CommitPlan()
        plan.agents = rows = AgentPlan()
        self._store(session, new, turn, plan, now)
        rows.add_turn(turn, correlation_of(new, turn))
        add_message(rows, new, turn, message_of(new, turn), now)
        session.commit(plan)
        # Not if another turn waits: an error of that one must not be an error of this message.
        if head.status == HeadState.IDLE and not before.last_queued:
            return Enqueued(turn.id, 0, head=head), effects
        effects.agents.append((new.project, new.agent))
        return Enqueued(turn.id, 0), effects

    def check(self, new: NewTurn) -> None:
        """Raise TurnRefused for a turn inside too many others, ValueRefused for its instruction."""
        most = self._settings.max_agent_depth
        if new.depth >= most:
            raise TurnRefused(
                new.agent,
                "recursion_depth_exceeded",
                f"it would be inside {new.depth} other turns, and max_agent_depth is {most}",
            )
        what = f"the instruction of agent {new.agent!r}"
        codec.check_value(what, new.instruction, self._settings.max_value_bytes)

    def _store(
        self,
        session: Session,
        new: NewTurn,
        turn: Turn,
        plan: CommitPlan,
        now: int,
    ) -> None:
        """Store the profile, and the boxes of the turn with its instruction."""
        project, cards, rows, profile = new.project, session.cards, plan.agents, new.profile
        assert rows is not None
        if not cards.hold(project, turn.profile_id):
            owner = profile_owner(project, turn.profile_id)
            card = NewCard(turn.profile_id, CardType.PROFILE, profile.to_json())
            _add_cards(plan, project, owner, [card], now)
        ids = add_context(plan, new, turn, now)
        inherited = new.inherited_box_id
        source = session.agent_joins.memory(project, new.clone_of) if new.clone_of else None
        parent = None if source is None else source[0]
        boxes = (
            (turn.context_box_id, "context", inherited or None),
            (turn.output_box_id, "output", parent),
        )
        rows.new_boxes += [NewBox(project, b, kind, new.agent, p, now) for b, kind, p in boxes]
        # Before the commit of the plan, which appends behind these.
        if inherited:
            cards.copy(project, inherited, turn.context_box_id, cards.length(project, inherited))
        if source is not None:
            cards.copy(project, source[0], turn.output_box_id, source[1])
        rows.append_cards(project, turn.context_box_id, ids, turn.id, 0)

    def _interrupt(
        self, session: Session, new: NewTurn, turn_id: str, now: int, effects: TurnEffects
    ) -> None:
        active = session.agent_turns.get(new.project, turn_id)
        assert active is not None
        reason = "a newer message to the agent interrupts it"
        session.agent_inbox.add(
            stop_message(active, "interrupted", reason, TaskStatus.CANCELED, now)
        )
        effects.agents.append((new.project, new.agent))


def turn_of(new: NewTurn, created: int) -> Turn:
    """Return a new turn, which waits."""
    if new.turn_id:
        turn_id = new.turn_id
    elif new.key is not None:
        # With the time: the key may be used again after its turn was removed, and runs and
        # cards of that turn may still be there, under ids that are derived from the turn's.
        turn_id = derived_id(new.project, new.agent, "turn", new.key, created)
    else:
        turn_id = uuid.uuid4().hex
    turn = Turn(turn_id, new.project, new.agent, facet=new.profile.facet)
    turn.profile_id, turn.depth, turn.priority = new.profile.id, new.depth, new.priority
    turn.trace_id = new.trace_id or turn_id
    turn.context_box_id = id_within(turn_id, "context")
    turn.output_box_id = id_within(turn_id, "output")
    turn.parent_turn_id, turn.enqueued = new.parent_turn_id, created
    if new.step is not None:
        turn.waiting_run_id, turn.waiting_step_id = new.step.run_id, new.step.step_id
        turn.waiting_step_key = new.step.step_key
    return turn


def message_of(new: NewTurn, turn: Turn) -> Message:
    """Return the message that begins a turn, as it waits in the queue."""
    # A caller that does not want to wait acts for a person at a screen: the message gets the
    # agent in the same transaction.
    kind = MessageType.UI_ACTION if new.when_busy == "refuse" else MessageType.TURN
    return Message(
        project=new.project,
        id=id_within(turn.id, "turn"),
        agent=new.agent,
        type=kind,
        correlation_id=correlation_of(new, turn),
        turn_id=turn.id,
        epoch=0,
        payload={"context_box_id": turn.context_box_id, "profile_box_id": turn.profile_id},
        status=InboxState.QUEUED,
        retries=0,
        due=turn.enqueued,
        created=turn.enqueued,
    )


def correlation_of(new: NewTurn, turn: Turn) -> str:
    """Return the key under which a second message is the same."""
    return new.key or turn.id


def add_message(rows: AgentPlan, new: NewTurn, turn: Turn, message: Message, now: int) -> None:
    """Add the message that begins a turn, and its edge."""
    headers: Json = {"trace_id": turn.trace_id, "depth": turn.depth, "source": new.source}
    rows.new_messages.append(new_message(message, headers))
    target = (turn.agent, turn.id)
    rows.add_edge(turn, "enqueue", "request", turn.id, now, target=target, source=new.source)


def add_context(plan: CommitPlan, new: NewTurn, turn: Turn, now: int) -> list[str]:
    """Add the cards of a turn's context: its task; return their ids."""
    context = [NewCard(instruction_id(turn.id), CardType.INSTRUCTION, new.instruction)]
    if new.profile.result is not None:
        fields: Json = {"fields": [{"name": name} for name in new.profile.result.fields]}
        card_id = id_within(turn.id, "card", "result_fields")
        context.append(NewCard(card_id, CardType.RESULT_FIELDS, fields))
    if new.parent_turn_id is not None:
        card_id = id_within(turn.id, "card", "parent")
        pointer: Json = {"agent_turn_id": new.parent_turn_id}
        context.append(NewCard(card_id, CardType.PARENT, pointer))
    _add_cards(plan, new.project, turn.id, context, now, author=new.source)
    return [card.id for card in context]


def instruction_id(turn_id: str) -> str:
    """Return the id of the card with the instruction of a turn."""
    return id_within(turn_id, "card", "instruction")


def _add_cards(
    plan: CommitPlan,
    project: str,
    owner: str,
    cards: Sequence[NewCard],
    now: int,
    *,
    author: str = "",
) -> None:
    """Add cards; `owner`, a turn or a profile, keeps their large contents."""
    encoder = codec.Encoder()
    assert plan.agents is not None
    for card in cards:
        content = encoder.attributes({"content": card.content}) or ""
        row = NewCardRow(project, card.id, card.type, author, owner, None, None, content, now)
        plan.agents.new_cards.append(row)
    plan.keep_payloads(owner, encoder, now)
