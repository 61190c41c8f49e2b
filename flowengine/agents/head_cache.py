"""The head cache: agents that this process advanced last, so that their rows need not be read.

A worker that continues with a turn has just written its head. If another process has advanced the
agent since, the guard of the optimistic commit refuses it. So the cache may be stale, and every
entry may be evicted.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from flowengine.store import codec
from flowengine.store.cards import Card
from flowengine.turns.records import Call, Head, NewCard, Turn

_MOST = 256  # agents
_MOST_CHARACTERS = 65_536  # in the cards of one agent
_TRUSTED = 1.0  #: seconds after which a turn is looked at again before a model is asked


@dataclass(slots=True)
class KnownHead:
    """An agent with its active turn, as last read or written by this process."""

    head: Head
    turn: Turn
    calls: Sequence[Call] = ()  #: that the turn waits for
    #: The cards of the context and of the output box; None: they have to be read.
    context: list[Card] | None = None
    output: list[Card] | None = None
    room: int = 0  #: characters that may be added to the cards
    at: float = field(default_factory=time.monotonic)

    def remember(self, context: Sequence[Card], output: Sequence[Card]) -> None:
        """Keep the cards of a turn, unless they are large."""
        self.context, self.output, self.room = list(context), [], _MOST_CHARACTERS
        self._use_room(context)
        self._add(output)

    def append(self, cards: Sequence[NewCard], now: int) -> None:
        """Add cards that a commit appends to the output box."""
        if self.output is not None:
            turn, first = self.turn, len(self.output)
            self._add(
                [
                    Card(
                        *(card.id, card.type, turn.agent, turn.id, card.step_id or None),
                        *(card.tool_call_id or None, card.content, now, position),
                    )
                    for position, card in enumerate(cards, first)
                ]
            )

    def _add(self, cards: Sequence[Card]) -> None:
        self._use_room(cards)
        if self.output is not None:
            self.output += cards

    def _use_room(self, cards: Sequence[Card]) -> None:
        for card in cards:
            self.room -= len(codec.dump(card.content))
            if self.room < 0:
                self.context = self.output = None
                return


class HeadCache:
    """Shared by all threads of a process."""

    def __init__(self) -> None:
        self._heads: OrderedDict[tuple[str, str], KnownHead] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, project: str, agent: str) -> KnownHead | None:
        """Remove an agent and return it: a decision changes it, so one thread owns it at a time."""
        with self._lock:
            return self._heads.pop((project, agent), None)

    def keep(self, known: KnownHead | None) -> None:
        if known is None or known.head.turn_id is None:
            return
        with self._lock:
            self._heads[known.head.project, known.head.agent] = known
            while len(self._heads) > _MOST:
                self._heads.popitem(last=False)

    def entered(self, project: str, agent: str, run_id: str, attempt: int) -> KnownHead | None:
        """Return the agent if the commit that claimed this try has just entered its turn."""
        with self._lock:
            known = self._heads.get((project, agent))
        if known is None or (known.head.run_id, known.head.entered) != (run_id, attempt):
            return None
        is_recent = time.monotonic() - known.at < _TRUSTED
        return known if is_recent and known.output is not None else None
