"""Remove ended turns, those of one agent in one transaction, under the lock of its head.

The memory of an agent, the output box that its turns share, stays as long as the agent has a turn:
cards in it stay, with their large values. With the last turn the agent itself is removed. Profiles
belong to no turn, and are removed when no turn has them any more.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

from flowengine.evaluator.records import id_within
from flowengine.store.agent_tables import CARD_IS_PROFILE
from flowengine.store.backend import in_dialect
from flowengine.store.cards import COPIED, profile_owner
from flowengine.store.parts import Part
from flowengine.turns.states import HeadState

_ENDED = (
    "SELECT project_id, agent_id, agent_turn_id FROM flowengine_agent_turn "
    "WHERE finished_at < %(before)s{filter} ORDER BY finished_at LIMIT %(most)s"
)
_COUNT = "SELECT count(*) FROM flowengine_agent_turn WHERE finished_at < %(before)s{filter}"
_OTHERS = (
    "SELECT 1 FROM flowengine_agent_turn WHERE project_id = %s AND agent_id = %s "
    "AND agent_turn_id NOT IN (SELECT w.value FROM {IDS}) LIMIT 1"
)
_OF_TURNS = (
    "DELETE FROM flowengine_{table} WHERE project_id = %s "
    "AND agent_turn_id IN (SELECT w.value FROM {{IDS}}) RETURNING 1"
)
_TABLES = (
    *("agent_turn", "agent_step", "turn_waiting_tools", "execution_edges", "agent_inbox"),
    "agent_event",
)
_CARDS = (
    "DELETE FROM flowengine_card WHERE project_id = %s "
    "AND agent_turn_id IN (SELECT w.value FROM {IDS}) AND NOT EXISTS (SELECT 1 "
    "FROM flowengine_box_card b WHERE b.project_id = flowengine_card.project_id "
    "AND b.box_id = %s AND b.card_id = flowengine_card.card_id) RETURNING 1"
)
_LEFT = (
    "SELECT DISTINCT c.agent_turn_id FROM flowengine_card c WHERE c.project_id = %s "
    "AND c.agent_turn_id IN (SELECT w.value FROM {IDS})"
)
_REMEMBERED = (
    "SELECT DISTINCT agent_turn_id FROM flowengine_box_card "
    "WHERE project_id = %s AND box_id = %s AND agent_turn_id IS NOT NULL "
    f"AND turn_epoch <> {COPIED}"
)
_REMEMBERED_CARDS = (
    "DELETE FROM flowengine_card WHERE project_id = %s AND card_id IN (SELECT b.card_id "
    "FROM flowengine_box_card b WHERE b.project_id = %s AND b.box_id = %s "
    f"AND b.turn_epoch <> {COPIED}) RETURNING 1"
)
_PLACES = (
    "DELETE FROM flowengine_box_card WHERE project_id = %s "
    "AND box_id IN (SELECT w.value FROM {IDS}) RETURNING 1"
)
_BOXES = (
    "DELETE FROM flowengine_box WHERE project_id = %s "
    "AND box_id IN (SELECT w.value FROM {IDS}) RETURNING 1"
)
_HEAD = (
    "DELETE FROM flowengine_agent_state_head WHERE project_id = %s AND agent_id = %s RETURNING 1"
)
# Without an index by profile: a purge that finds nothing else to do reads the turns once.
_IS_UNUSED = (
    "NOT EXISTS (SELECT 1 FROM flowengine_agent_turn t "
    "WHERE t.project_id = {card}.project_id AND t.profile_card_id = {card}.card_id)"
)
_UNUSED = (
    f"SELECT c.project_id, c.card_id FROM flowengine_card c WHERE c.{CARD_IS_PROFILE} "
    f"AND c.created_at < %(before)s{{filter}} AND {_IS_UNUSED.format(card='c')} "
    "ORDER BY c.project_id, c.card_id LIMIT %(most)s{lock}"
)
_PROFILES = (
    "DELETE FROM flowengine_card WHERE project_id = %s AND card_id IN (SELECT w.value FROM {IDS}) "
    f"AND {CARD_IS_PROFILE} AND {_IS_UNUSED.format(card='flowengine_card')} RETURNING card_id"
)
_MOVE = (
    "INSERT INTO flowengine_reference (run_id, hash) SELECT DISTINCT %s, f.hash "
    "FROM flowengine_reference f WHERE f.run_id IN (SELECT w.value FROM {IDS}) RETURNING hash"
)
_MOVED = "DELETE FROM flowengine_reference WHERE run_id IN (SELECT w.value FROM {IDS}) RETURNING 1"


class EndedTurn(NamedTuple):
    project: str
    agent: str
    id: str


class RemovedTurns(NamedTuple):
    turns: int
    rows: int  #: of the other tables


class AgentPurge(Part):
    def ended(self, before: int, project: str | None, most: int) -> list[EndedTurn]:
        """Return the turns that ended before that time, the oldest first."""
        condition, values = _of_project(project)
        given = {**values, "before": before, "most": most}
        return [
            EndedTurn(*row) for row in self._session.rows(_ENDED.format(filter=condition), given)
        ]

    def count(self, before: int, project: str | None) -> int:
        condition, values = _of_project(project)
        text = _COUNT.format(filter=condition)
        return int(self._session.rows(text, {**values, "before": before})[0][0])

    def remove(self, project: str, agent: str, turn_ids: Iterable[str]) -> RemovedTurns:
        """Remove ended turns of one agent; none if another transaction has locked the agent.

        Large values are marked for the purge of values.
        """
        ids = sorted(turn_ids)
        head = self._session.agent_heads.lock(project, agent, wait=False)
        if head is None:
            return RemovedTurns(0, 0)
        memory = head.output_box_id or head.memory_box_id or ""
        is_last = head.status == HeadState.IDLE and not self._rows(_OTHERS, ids, project, agent)
        removed = [self._rows(_OF_TURNS.format(table=table), ids, project) for table in _TABLES]
        rows = sum(map(len, removed[1:]))
        owners = set(ids)
        # A turn has a box of its own from the beginning, also if it works with the agent's memory.
        boxes = {id_within(turn_id, kind) for turn_id in ids for kind in ("context", "output")}
        if is_last:
            owners |= {row[0] for row in self._session.rows(_REMEMBERED, (project, memory))}
            key = (project, project, memory)
            rows += len(self._session.rows(_REMEMBERED_CARDS, key))
            rows += len(self._session.rows(_HEAD, (project, agent)))
            boxes, memory = {*boxes, memory}, ""
        rows += len(self._rows(_CARDS, ids, project, last=(memory,)))
        rows += len(self._rows(_PLACES, sorted(boxes - {memory}), project))
        rows += len(self._rows(_BOXES, sorted(boxes - {memory}), project))
        kept = {row[0] for row in self._rows(_LEFT, ids, project)}
        if owners - kept:
            self._session.purge.mark(sorted(owners - kept))
        return RemovedTurns(len(removed[0]), rows)

    def remove_profiles(self, before: int, project: str | None, most: int) -> int:
        """Remove profiles that are older than that and that no turn has; return their number.

        An enqueue holds the card of its profile until its turn is there. So a locked card is
        skipped, and the turn of one that was just released is seen by the second statement, which
        reads a later state. An enqueue that comes later waits, and stores the card again.
        """
        owners = []
        for of_project, ids in self._unused_profiles(before, project, most).items():
            removed = self._rows(_PROFILES, sorted(ids), of_project)
            owners += [profile_owner(of_project, row[0]) for row in removed]
        if owners:
            self._give_up_values(owners)
        return len(owners)

    def _unused_profiles(self, before: int, project: str | None, most: int) -> dict[str, list[str]]:
        """Lock profiles that no turn has, and return their ids by project."""
        condition, values = _of_project(project)
        dialect = self._session.dialect
        lock = f"{dialect.LOCK}{dialect.SKIP_LOCKED}"
        text = _UNUSED.format(filter=condition, lock=lock)
        found: dict[str, list[str]] = {}
        for of_project, card_id in self._session.rows(
            text, {**values, "before": before, "most": most}
        ):
            found.setdefault(of_project, []).append(card_id)
        return found

    def _give_up_values(self, owners: list[str]) -> None:
        """Let a marker have the large values of removed cards: the owners may get them again."""
        marker = uuid.uuid4().hex
        if self._rows(_MOVE, owners, marker):
            self._rows(_MOVED, owners)
            self._session.purge.mark([marker])

    def _rows(
        self, template: str, ids: list[str], *first: str, last: tuple[str, ...] = ()
    ) -> list[tuple[Any, ...]]:
        query = in_dialect(template, self._session.dialect)
        return self._session.rows(query, (*first, json.dumps(ids), *last))


def _of_project(project: str | None) -> tuple[str, dict[str, Any]]:
    if project is None:
        return "", {}
    return " AND project_id = %(project)s", {"project": project}
