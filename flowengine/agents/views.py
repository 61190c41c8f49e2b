"""Agents and turns as people look at them: read from their rows alone, without the agents' code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from flowengine.agents.drafts import Draft
from flowengine.errors import AmbiguousTurn, InvalidFilter, PayloadUnreadable, UnknownTurn
from flowengine.program.nodes import Json
from flowengine.store import Session
from flowengine.store.agent_lists import TURN_STATES, AgentCount, CallInfo, HeadInfo
from flowengine.store.agent_turns import AgentEvent, StepRecord, TurnInfo
from flowengine.store.cards import Card
from flowengine.store.shown_values import Unreadable
from flowengine.turns.records import CardType
from flowengine.turns.states import HeadState, TurnState

_HOUR = 3_600_000  #: milliseconds
_SCANNED = 1_000  #: turns that are looked at for one page of a filter
_MAX_CARDS, _MAX_CALLS, _MAX_EVENTS = 2_000, 1_000, 2_000  #: of one turn that are shown
#: Digits of an id of a run or a call that are shown: those of one turn share the first twelve.
SHOWN_DIGITS = 20
_LONGEST_LIST = 5  #: calls that a line names


@dataclass(frozen=True, slots=True)
class AgentLine:
    """An agent in a list."""

    project: str
    agent: str
    state: str
    turn: str | None
    epoch: int
    waits_for: str
    since: int

    @classmethod
    def of(cls, head: HeadInfo, calls: list[CallInfo]) -> AgentLine:
        waits = head_waits_for(head, calls)
        about = (head.state, head.turn_id, head.epoch)
        return cls(head.project, head.agent, *about, waits, head.since)


@dataclass(frozen=True, slots=True)
class AgentPage:
    agents: list[AgentLine]
    cursor: str | None  #: continues the list; None: there are no more


@dataclass(frozen=True, slots=True)
class TurnPage:
    turns: list[TurnInfo]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class AgentMetrics:
    """The numbers of agents and turns, by project."""

    active: list[AgentCount]  #: agents that are not idle, by their state
    open_turns: list[AgentCount]  #: by their state
    ended_turns: list[AgentCount]  #: of the last hour, by their status


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn with everything that it has written."""

    turn: TurnInfo
    head: HeadInfo | None
    steps: list[StepRecord]
    calls: list[CallInfo]
    cards: list[Card]
    events: list[AgentEvent]
    waits_for: str
    children: list[tuple[str, str]]  #: turns that its calls have asked, with their agents
    draft: Draft | None  #: the answer that its model is giving

    @property
    def deliverable(self) -> Json:
        """The content of the deliverable card; None while the turn goes on."""
        found = [card.content for card in self.cards if card.type == CardType.DELIVERABLE]
        return found[0] if found else None

    def cards_of_step(self, step_id: str) -> list[Card]:
        return [card for card in self.cards if card.step_id == step_id]

    def other_cards(self) -> list[Card]:
        """The cards that belong to no step: instruction, fields, deliverable."""
        return [card for card in self.cards if not card.step_id]

    def call_of(self, card: Card) -> CallInfo | None:
        return next((call for call in self.calls if call.id == card.tool_call_id), None)


def agent_page(
    session: Session, project: str | None, state: str | None, cursor: str | None, limit: int
) -> AgentPage:
    """Return agents by project and name, a page at a time. Raises InvalidFilter."""
    if state is not None and state not in HeadState.ALL:
        raise InvalidFilter.of("state", state, f"one of {', '.join(HeadState.ALL)}")
    after = ("", "") if cursor is None else _agent_place(cursor)
    heads = session.agent_lists.heads(project, state, after, limit + 1)
    page = heads[:limit]
    lines = [AgentLine.of(head, _open_calls(session, head)) for head in page]
    following = None
    if len(heads) > limit:
        following = f"{quote(page[-1].project, safe='')}/{quote(page[-1].agent, safe='')}"
    return AgentPage(lines, following)


def turn_page(
    session: Session,
    project: str | None,
    agent: str | None,
    state: str | None,
    cursor: str | None,
    limit: int,
) -> TurnPage:
    """Return turns, the newest first, a page at a time. Raises InvalidFilter."""
    if state is not None and state not in TURN_STATES:
        raise InvalidFilter.of("state", state, f"one of {', '.join(TURN_STATES)}")
    before = None if cursor is None else _place(cursor)
    most = max(_SCANNED, limit + 1)
    page = session.agent_lists.turns(project, agent, state, before, limit, most)
    return TurnPage(page.turns, None if page.last is None else f"{page.last[0]}-{page.last[1]}")


def find_turn(session: Session, beginning: str, project: str | None) -> TurnInfo:
    """Return the turn whose id begins so, or the present or newest one of an agent of that name.

    Raises UnknownTurn and AmbiguousTurn.
    """
    found = session.agent_lists.with_prefix(beginning, project)
    if not found:
        named = session.agent_lists.of_agent(beginning, project)
        infos = [session.agent_turns.info(of_project, turn_id) for of_project, turn_id in named]
        found = [info for info in infos if info is not None]
    if not found:
        raise UnknownTurn(beginning)
    exact = [turn for turn in found if turn.id == beginning]
    if len(found) > 1 and len(exact) != 1:
        raise AmbiguousTurn(beginning)
    return exact[0] if exact else found[0]


def turn_view(session: Session, turn: TurnInfo) -> TurnView:
    """Return a turn as it is now."""
    lists, turns = session.agent_lists, session.agent_turns
    head = lists.head(turn.project, turn.agent)
    calls = lists.calls(turn.project, turn.id, _MAX_CALLS)
    is_active = head is not None and head.turn_id == turn.id
    if turn.state == TurnState.QUEUED:
        before = lists.queued_before(turn)
        waits = f"{before + 1} other messages to the agent" if before else "the turn before it"
    else:
        waits = head_waits_for(head, calls) if head is not None and is_active else ""
    return TurnView(
        turn,
        head if is_active else None,
        turns.steps(turn.project, turn.id),
        calls,
        lists.cards(turn, _MAX_CARDS),
        turns.turn_events(turn.project, turn.id, 0, _MAX_EVENTS),
        waits,
        lists.children(turn.project, turn.id, _MAX_CALLS),
        draft_of(session, turn) if is_active else None,
    )


def draft_of(session: Session, turn: TurnInfo) -> Draft | None:
    """Return the answer that the model of a turn is giving; None if it gives none."""
    head = session.agent_heads.get(turn.project, turn.agent)
    if head is None or head.turn_id != turn.id or head.run_id is None:
        return None
    tries = session.tasks.tries_of_run(head.run_id)
    shown = [each.progress for each in tries if each.state == "running" and each.progress]
    return Draft.of(json.loads(shown[0])) if shown else None


def agent_metrics(session: Session, project: str | None, now: int) -> AgentMetrics:
    """Count agents and turns. The cost follows those that are active or have just ended."""
    lists = session.agent_lists
    return AgentMetrics(
        lists.active_heads(project),
        lists.open_turns(project),
        lists.ended_turns(project, now - _HOUR),
    )


def head_waits_for(head: HeadInfo, calls: list[CallInfo]) -> str:
    """Return what an agent waits for, in words."""
    match head.state:
        case HeadState.DISPATCHED:
            return "a worker for its model call"
        case HeadState.RUNNING:
            of_run = f" (run {head.model_run_id[:SHOWN_DIGITS]})" if head.model_run_id else ""
            return ("the model" if head.entered else "a worker for its model call") + of_run
        case HeadState.SUSPENDED:
            named = [_call_text(call) for call in calls if call.is_open]
            more = len(named) - _LONGEST_LIST
            shown = ", ".join(named[:_LONGEST_LIST])
            return f"{shown} and {more} more calls" if more > 0 else shown or "its calls"
    return ""


def _call_text(call: CallInfo) -> str:
    if call.approval == "asked":
        return f"a person: {call.tool}, call {call.id[:SHOWN_DIGITS]}"
    return f"{call.tool} (run {call.run_id[:SHOWN_DIGITS]})" if call.run_id else call.tool


def _open_calls(session: Session, head: HeadInfo) -> list[CallInfo]:
    if head.state != HeadState.SUSPENDED or head.turn_id is None:
        return []
    calls = session.agent_lists.calls(head.project, head.turn_id, _MAX_CALLS)
    return [call for call in calls if call.is_open]


def _agent_place(cursor: str) -> tuple[str, str]:
    project, slash, agent = str(cursor).partition("/")
    if not slash or "\0" in unquote(cursor):
        raise InvalidFilter.of("cursor", cursor, "the cursor of an earlier page")
    return unquote(project), unquote(agent)


def _place(cursor: str) -> tuple[int, str]:
    enqueued, _, turn_id = str(cursor).partition("-")
    if not (enqueued.isascii() and enqueued.isdecimal() and len(enqueued) < 18 and turn_id):
        raise InvalidFilter.of("cursor", cursor, "the cursor of an earlier page")
    return int(enqueued), turn_id


def card_text(card: Card) -> str:
    """Return a card as one text: what people read of it first."""
    content = card.content
    if isinstance(content, str):
        return content
    if isinstance(content, Unreadable):
        return str(PayloadUnreadable(content.why))
    if not isinstance(content, Mapping):
        return ""
    match card.type:
        case CardType.THOUGHT:
            given = content.get("content")
            parts = (
                [part for part in given if isinstance(part, Mapping)]
                if isinstance(given, list)
                else []
            )
            return "\n".join(str(part["text"]) for part in parts if part.get("text"))
        case CardType.ERROR:
            return f"{content.get('code', '')}: {content.get('message', '')}"
        case CardType.DELIVERABLE if "text" in content:
            return str(content["text"])
    return ""
