"""Cards and boxes: immutable contents, and the ordered lists that they are appended to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from flowengine.evaluator.records import derived_id
from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.agent_turns import INFO_COLUMNS, TurnInfo
from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part

_CARD = (
    "INSERT INTO flowengine_card (project_id, card_id, type, author, agent_turn_id, step_id, "
    "tool_call_id, content, created_at) VALUES {rows} ON CONFLICT DO NOTHING RETURNING card_id"
)
COPIED = -1  #: the epoch of references to cards of another box: their owner removes the cards
_COPY = (
    "INSERT INTO flowengine_box_card (project_id, box_id, position, card_id, agent_turn_id, "
    f"turn_epoch) SELECT project_id, %s, position, card_id, agent_turn_id, {COPIED} "
    "FROM flowengine_box_card WHERE project_id = %s AND box_id = %s AND position < %s "
    "RETURNING position"
)
_LENGTH = (
    "SELECT COALESCE(max(position) + 1, 0) FROM flowengine_box_card "
    "WHERE project_id = %s AND box_id = %s"
)
_COLUMNS = (
    "c.card_id, c.type, c.author, c.agent_turn_id, c.step_id, c.tool_call_id, c.content, "
    "c.created_at, b.position"
)
# `|| ''`: the box is read first, and then each card by its key, never all cards of the project.
_CARDS = (
    "flowengine_box_card b JOIN flowengine_card c ON c.project_id = b.project_id || '' "
    "AND c.card_id = b.card_id"
)
_READ = (
    f"SELECT {_COLUMNS} FROM {_CARDS} "
    "WHERE b.project_id = %s AND b.box_id = %s AND b.position >= %s ORDER BY b.position"
)
_READ_BOXES = (
    f"WITH w(at, project, box) AS (VALUES {{values}}) SELECT {_COLUMNS}, w.at "
    "FROM w {JOIN} flowengine_box_card b ON b.project_id = w.project AND b.box_id = w.box "
    "JOIN flowengine_card c ON c.project_id = b.project_id || '' AND c.card_id = b.card_id "
    "ORDER BY w.at, b.position"
)
_GET = (
    "SELECT card_id, type, author, agent_turn_id, step_id, tool_call_id, content, created_at, 0 "
    "FROM flowengine_card WHERE project_id = %s AND card_id = %s"
)
_OUTCOME = (
    f"SELECT {', '.join(f't.{column}' for column in INFO_COLUMNS)}, t.profile_card_id, "
    "c.card_id, c.type, c.author, c.agent_turn_id, c.step_id, c.tool_call_id, c.content, "
    "c.created_at, 0 FROM flowengine_agent_turn t LEFT JOIN flowengine_card c "
    "ON c.project_id = t.project_id AND c.card_id = t.deliverable_card_id "
    "WHERE t.project_id = %s AND t.agent_turn_id = %s"
)
_HOLD = "SELECT 1 FROM flowengine_card WHERE project_id = %s AND card_id = %s{SHARE_LOCK}"
# Invariant: the reference first. Its lock keeps a purge from removing a value that is stored
# already and that a card is about to refer to.
_REFER = (
    "INSERT INTO flowengine_reference (run_id, hash) VALUES (%s, %s) "
    "ON CONFLICT DO NOTHING RETURNING hash"
)
_STORE = (
    "INSERT INTO flowengine_payload (hash, body, created) VALUES (%s, %s, %s) "
    "ON CONFLICT DO NOTHING RETURNING hash"
)


def profile_owner(project: str, profile_id: str) -> str:
    """Return the owner of the large contents of a profile's card, one for each project.

    Several projects have a card with the same id: it is the hash of the profile.
    """
    return derived_id(project, "profile", profile_id)


class Card(NamedTuple):
    """A card as it is read from a box."""

    id: str
    type: str
    author: str
    turn_id: str | None
    step_id: str | None
    tool_call_id: str | None
    content: Json
    created: int
    position: int = 0


class Outcome(NamedTuple):
    """A turn, and how it has ended."""

    info: TurnInfo
    profile_id: str
    deliverable: Card | None  #: None while the turn goes on


class Cards(Part):
    """In a transaction."""

    def add(self, project: str, owner: str, cards: Iterable[Card], now: int) -> None:
        """Store cards; idempotent by their ids. `owner`, a turn, keeps their large contents."""
        encoder, rows = codec.Encoder(), []
        for card in cards:
            content = encoder.attributes({"content": card.content})
            ids = (card.turn_id or None, card.step_id or None, card.tool_call_id or None)
            rows.append((project, card.id, card.type, card.author, *ids, content, now))
        for digest, body in sorted(encoder.payloads.items()):
            self.keep_payload(owner, digest, body, now)
        self._insert(_CARD, rows)

    def keep_payload(self, owner: str, digest: str, body: str, now: int) -> None:
        """Store a large value, which `owner`, a turn or a run, keeps."""
        self._session.rows(_REFER, (owner, digest))
        self._session.rows(_STORE, (digest, body, now))

    def copy(self, project: str, source: str, target: str, length: int) -> None:
        """Copy the first references of a box into an empty one; the cards are shared."""
        self._session.rows(_COPY, (target, project, source, length))

    def length(self, project: str, box_id: str) -> int:
        return int(self._session.rows(_LENGTH, (project, box_id))[0][0])

    def read(self, project: str, box_id: str, first: int = 0) -> list[Card]:
        """Return the cards of a box in order, from a position on."""
        return self._cards(self._session.rows(_READ, (project, box_id, first)))

    def read_boxes(self, boxes: Sequence[tuple[str, str]]) -> list[list[Card]]:
        """Return the cards of boxes, each given by project and id, read by one statement."""
        values = ", ".join(f"({at}, %s, %s)" for at in range(len(boxes)))
        text = in_dialect(_READ_BOXES.replace("{values}", values), self._session.dialect)
        rows = self._session.rows(text, [value for box in boxes for value in box])
        found: list[list[Card]] = [[] for _ in boxes]
        for row, card in zip(rows, self._cards([row[:-1] for row in rows]), strict=True):
            found[row[-1]].append(card)
        return found

    def hold(self, project: str, card_id: str) -> bool:
        """Keep a card from being removed in this transaction; False: it is not there.

        Waits for a purge that is removing it.
        """
        text = in_dialect(_HOLD, self._session.dialect)
        return bool(self._session.rows(text, (project, card_id)))

    def get(self, project: str, card_id: str) -> Card | None:
        found = self._cards(self._session.rows(_GET, (project, card_id)))
        return found[0] if found else None

    def outcome(self, project: str, turn_id: str) -> Outcome | None:
        """Return a turn with its deliverable; None: there is no such turn."""
        rows = self._session.rows(_OUTCOME, (project, turn_id))
        if not rows:
            return None
        row, width = rows[0], len(INFO_COLUMNS)
        info, profile_id, card = TurnInfo(*row[:width]), row[width], row[width + 1 :]
        return Outcome(info, profile_id, None if card[0] is None else self._cards([card])[0])

    def _cards(self, rows: Sequence[Sequence[Any]]) -> list[Card]:
        contents = [codec.attributes(row[6]) for row in rows]
        self._session.payloads.fill_in(contents)
        return [
            Card._make((*row[:6], content["content"], *row[7:]))
            for row, content in zip(rows, contents, strict=True)
        ]

    def _insert(self, text: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            marks = f"({', '.join(['%s'] * len(rows[0]))})"
            values = [value for row in rows for value in row]
            self._session.rows(text.format(rows=", ".join([marks] * len(rows))), values)
