"""All rows of agents at one moment, and the two moments around a commit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from flowengine.store import agent_tables as tables
from flowengine.store import codec
from flowengine.store.columns import Table

Key: TypeAlias = tuple[Any, ...]
Row: TypeAlias = Any  #: a named tuple with the columns of its table
Part: TypeAlias = Mapping[Key, Row]


class _Reader:
    """Reads one table into named tuples by their primary keys."""

    def __init__(self, table: type[Table]) -> None:
        described: Any = table.__table__  # type: ignore[attr-defined]
        names = [column.name for column in described.columns]
        key = [names.index(column.name) for column in described.primary_key]
        made: Any = NamedTuple(table.__name__, [(name, Any) for name in names])  # type: ignore[misc]
        self._make, self._key = made._make, key
        self._query = f"SELECT {', '.join(names)} FROM {described.name}"

    def __call__(self, session: Any) -> dict[Key, Row]:
        found = [self._make(row) for row in session.rows(self._query)]
        return {tuple(row[at] for at in self._key): row for row in found}


_READERS = {
    "heads": _Reader(tables.AgentStateHeadRow),
    "messages": _Reader(tables.AgentInboxRow),
    "turns": _Reader(tables.AgentTurnRow),
    "steps": _Reader(tables.AgentStepRow),
    "calls": _Reader(tables.TurnWaitingToolsRow),
    "edges": _Reader(tables.ExecutionEdgesRow),
    "cards": _Reader(tables.CardRow),
    "boxes": _Reader(tables.BoxRow),
    "places": _Reader(tables.BoxCardRow),
    "events": _Reader(tables.AgentEventRow),
}
_FACTS = "SELECT id FROM flowengine_fact"


@dataclass(frozen=True)
class Rows:
    """The rows of agents at one moment, by their primary keys."""

    heads: Part = field(default_factory=dict)
    messages: Part = field(default_factory=dict)
    turns: Part = field(default_factory=dict)
    steps: Part = field(default_factory=dict)
    calls: Part = field(default_factory=dict)
    edges: Part = field(default_factory=dict)
    cards: Part = field(default_factory=dict)
    boxes: Part = field(default_factory=dict)
    places: Part = field(default_factory=dict)
    events: Part = field(default_factory=dict)
    facts: frozenset[str] = frozenset()

    @classmethod
    def read(cls, opened: Callable[[], AbstractContextManager[Any]]) -> Rows:
        """Read all rows in a session: with that of `autocommit` past SQLAlchemy, which is quick."""
        with opened() as session:
            facts = frozenset(row[0] for row in session.rows(_FACTS))
            return cls(**{name: read(session) for name, read in _READERS.items()}, facts=facts)

    # --- rows of one thing ---

    def head(self, row: Row) -> Row | None:
        """The head of the agent that a row belongs to."""
        return self.heads.get((row.project_id, row.agent_id))

    def turn(self, row: Row) -> Row | None:
        """The turn that a row belongs to."""
        return self.turns.get((row.project_id, row.agent_turn_id))

    def active_turn(self, head: Row) -> Row | None:
        return self.turns.get((head.project_id, head.active_agent_turn_id))

    def open_calls(self, head: Row) -> list[Row]:
        return [
            call
            for call in self.calls.values()
            if call.wait_status == "waiting"
            and (call.project_id, call.agent_id) == (head.project_id, head.agent_id)
        ]

    def result_cards(self) -> dict[Key, Row]:
        """The result of each call, by project and call."""
        return {
            (card.project_id, card.tool_call_id): card
            for card in self.cards.values()
            if card.type == "tool.result"
        }

    def boxes_with_places(self) -> dict[Key, list[Row]]:
        found: defaultdict[Key, list[Row]] = defaultdict(list)
        for place in self.places.values():
            found[place.project_id, place.box_id].append(place)
        return {key: sorted(each, key=lambda p: p.position) for key, each in found.items()}

    def by_agent(self, name: str) -> dict[Key, list[Row]]:
        """The rows of a table by project and agent."""
        found: defaultdict[Key, list[Row]] = defaultdict(list)
        for row in getattr(self, name).values():
            found[row.project_id, row.agent_id].append(row)
        return found


@dataclass
class Told:
    """The simple model: what callers have asked for, and what they were told."""

    asked: set[Key] = field(default_factory=set)  #: project, agent and key of each message
    accepted: dict[Key, str] = field(default_factory=dict)  #: the same: the turn
    order: list[Key] = field(default_factory=list)  #: project and turn, as they were enqueued
    removed: set[Key] = field(default_factory=set)  #: project and turn: purged
    unreadable: set[str] = field(default_factory=set)  #: messages that nobody can take in
    waits: dict[str, float] = field(default_factory=dict)  #: by tool: its least seconds
    max_depth: int = 20


@dataclass(frozen=True)
class Commit:
    """The rows before and after one commit."""

    before: Rows
    after: Rows
    now: int
    told: Told

    def new(self, name: str) -> list[Row]:
        """The rows of a table that the commit has added."""
        before, after = getattr(self.before, name), getattr(self.after, name)
        return [row for key, row in after.items() if key not in before]

    def kept(self, name: str) -> Iterator[tuple[Row, Row]]:
        """The rows of a table that were there before, each with the row as it is now."""
        before, after = getattr(self.before, name), getattr(self.after, name)
        for key, row in before.items():
            if key in after:
                yield row, after[key]

    def changed(self, name: str) -> Iterator[tuple[Row, Row]]:
        return (pair for pair in self.kept(name) if pair[0] != pair[1])

    def was_finished(self, row: Row) -> bool:
        """Whether the turn of a row had ended before this commit."""
        turn = self.before.turn(row)
        return turn is not None and turn.state == "finished"


Check: TypeAlias = Callable[[Commit], Iterator[str]]


def content_of(card: Row) -> Any:
    return codec.attributes(card.content)["content"]


def body_of(event: Row) -> Any:
    return codec.load(event.body)
