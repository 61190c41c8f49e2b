"""The part of a commit plan that belongs to agents: heads, turns, cards, calls and messages."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

from flowengine.store.agent_rows import (
    AGENT_SECTIONS,
    HEAD_GUARDS,
    AppendedCard,
    EndedAgentStep,
    EndedWaitingTool,
    HeadUpdate,
    MarkedMessage,
    NewAgentEvent,
    NewAgentStep,
    NewBox,
    NewCardRow,
    NewEdge,
    NewWaitingTool,
    TurnUpdate,
)
from flowengine.store.records import Row
from flowengine.turns.records import Head, Turn

_rows_of = attrgetter(*AGENT_SECTIONS)
_GUARDS = len(HEAD_GUARDS)


class AgentPlan:
    """The part of a commit plan that belongs to agents."""

    def __init__(self) -> None:
        self.new_cards: list[NewCardRow] = []
        self.new_boxes: list[NewBox] = []
        self.appended_cards: list[AppendedCard] = []
        self.new_heads: list[Row] = []
        self.heads: list[HeadUpdate] = []
        #: Project and card of a profile that must be there; it stays until the commit.
        self.held_profile: tuple[str, str] | None = None
        #: A task and the lease under which it must be held.
        self.held_task: tuple[str, int] | None = None
        self.ended_agent_steps: list[EndedAgentStep] = []
        self.new_agent_steps: list[NewAgentStep] = []
        self.ended_calls: list[EndedWaitingTool] = []
        self.new_calls: list[NewWaitingTool] = []
        self.edges: list[NewEdge] = []
        self.new_turns: list[Row] = []
        self.turns: list[TurnUpdate] = []
        self.new_messages: list[Row] = []
        self.messages: list[MarkedMessage] = []
        self.agent_events: list[NewAgentEvent] = []

    def copied(self) -> AgentPlan:
        """Return a copy to which rows can be added."""
        copy = AgentPlan()
        copy.include(self)
        return copy

    def include(self, other: AgentPlan) -> None:
        """Add the rows of another plan, which is about other agents."""
        for name, rows in other.filled():
            getattr(self, name).extend(rows)

    def filled(self) -> list[tuple[str, list[Row]]]:
        """Return the sections that have rows, in order."""
        return list(filter(itemgetter(1), zip(AGENT_SECTIONS, _rows_of(self), strict=True)))

    def save_head(self, head: Head, before: Head, now: int, messages: str) -> None:
        """Write a head if it is still as it was before the first decision of this commit."""
        update = HeadUpdate(
            *(head.project, head.agent, head.status, head.turn_id, head.epoch, head.depth),
            *(head.trace_id, head.parent_step_id, head.profile_box_id, head.context_box_id),
            *(head.output_box_id, head.waiting, head.resume_deadline, head.run_id),
            *(head.entered, head.memory_box_id, head.events, now),
            *(before.epoch, before.turn_id or "", before.events, before.entered),
            messages,
        )
        for at, row in enumerate(self.heads):
            if row[:2] == update[:2]:
                self.heads[at] = HeadUpdate._make((*update[:-_GUARDS], *row[-_GUARDS:]))
                return
        self.heads.append(update)

    def save_turn(self, update: TurnUpdate) -> None:
        """Change columns of a turn, beside those that this commit changes already."""
        for at, row in enumerate(self.turns):
            if row[:2] == update[:2]:
                both = zip(update, row, strict=True)
                self.turns[at] = TurnUpdate._make(b if new is None else new for new, b in both)
                return
        self.turns.append(update)

    def append_cards(
        self, project: str, box_id: str, card_ids: Sequence[str], turn_id: str, epoch: int
    ) -> None:
        """Append cards to a box."""
        first = sum(row.box_id == box_id for row in self.appended_cards)
        self.appended_cards += [
            AppendedCard(project, box_id, position, card_id, turn_id, epoch)
            for position, card_id in enumerate(card_ids, first)
        ]

    def insert_heads(self) -> None:
        """Turn the updates of heads into inserts: the agents have no row yet."""
        self.new_heads += [row[:-_GUARDS] for row in self.heads]
        self.heads.clear()

    def add_turn(
        self, turn: Turn, correlation_id: str, epoch: int = 0, dispatched: int | None = None
    ) -> None:
        self.new_turns.append(
            (
                *(turn.id, turn.project, turn.agent, turn.state, turn.facet, turn.profile_id),
                *(turn.context_box_id, turn.output_box_id, turn.base_index, turn.depth),
                *(turn.trace_id, turn.priority, turn.steps, turn.tokens, turn.deadline),
                *(turn.parent_turn_id, turn.waiting_run_id, turn.waiting_step_id),
                *(turn.waiting_step_key, turn.enqueued, correlation_id, epoch, dispatched),
            )
        )

    def add_edge(self, turn: Turn, primitive: str, phase: str, *about: Any, **ends: Any) -> None:
        """Add an edge; the arguments are those of `new_edge`."""
        self.edges.append(new_edge(turn, primitive, phase, *about, **ends))


def new_edge(
    turn: Turn,
    primitive: str,
    phase: str,
    correlation_id: str,
    now: int,
    *,
    step_id: str = "",
    target: tuple[str, str | None] = ("", None),
    source: str | None = None,
) -> NewEdge:
    """Return the row of an edge; without `source` it begins at the turn's agent."""
    key = (turn.project, correlation_id, primitive, phase, turn.id)
    agent = turn.agent if source is None else source
    return NewEdge(*key, agent, step_id, *target, turn.depth, turn.trace_id, now)
