"""Queries of joins: the turns that one run waits for, and the agents and boxes of its tasks."""

from __future__ import annotations

from typing import NamedTuple

from flowengine.store.agent_tables import TURN_IS_WAITED_FOR
from flowengine.store.parts import Part

_OPEN_OF_RUN = (
    "SELECT project_id, agent_turn_id FROM flowengine_agent_turn "
    f"WHERE {TURN_IS_WAITED_FOR} AND waiting_run_id = %s"
)
_LAST_FACET = (
    "SELECT facet FROM flowengine_agent_turn WHERE project_id = %s AND agent_id = %s "
    "ORDER BY enqueued_at DESC LIMIT 1"
)
_BOX_OF_CHILD = (
    "SELECT 1 FROM flowengine_agent_turn WHERE project_id = %s AND parent_turn_id = %s "
    "AND output_box_id = %s LIMIT 1"
)
# One statement, so one state: a turn that begins between two would be copied in part.
_MEMORY = (
    "SELECT h.memory_box_id, COALESCE(t.output_base_index, (SELECT max(b.position) + 1 "
    "FROM flowengine_box_card b WHERE b.project_id = h.project_id "
    "AND b.box_id = h.memory_box_id), 0) FROM flowengine_agent_state_head h "
    "LEFT JOIN flowengine_agent_turn t ON t.project_id = h.project_id "
    "AND t.agent_turn_id = h.active_agent_turn_id "
    "WHERE h.project_id = %s AND h.agent_id = %s AND h.memory_box_id IS NOT NULL"
)
_ENDS = (
    "SELECT id, key, facet_name, generation, state FROM flowengine_step "
    "WHERE run_id = %s AND NOT superseded AND (facet_name IN (%s, %s) OR key = %s)"
)


class JoinStep(NamedTuple):
    """A step that ends a join, or that waits for its deadline."""

    id: str
    key: str
    facet: str
    generation: int
    state: str


class AgentJoins(Part):
    """In a transaction."""

    def open_of_run(self, run_id: str) -> list[tuple[str, str]]:
        """Return the turns that steps of a run wait for, each with its project."""
        return [(row[0], row[1]) for row in self._session.rows(_OPEN_OF_RUN, (run_id,))]

    def last_facet(self, project: str, agent: str) -> str | None:
        """Return the definition of an agent's newest turn."""
        rows = self._session.rows(_LAST_FACET, (project, agent))
        return rows[0][0] if rows else None

    def is_box_of_child(self, project: str, turn_id: str, box_id: str) -> bool:
        """Whether a turn has asked for the turn that writes to a box."""
        return bool(self._session.rows(_BOX_OF_CHILD, (project, turn_id, box_id)))

    def memory(self, project: str, agent: str) -> tuple[str, int] | None:
        """Return the box with an agent's memory, and how many of its cards are of ended turns.

        The cards of a turn that goes on are left out: a call may lack its result.
        """
        rows = self._session.rows(_MEMORY, (project, agent))
        return (rows[0][0], int(rows[0][1])) if rows else None

    def ends(self, run_id: str, facets: tuple[str, ...], deadline_key: str) -> list[JoinStep]:
        """Return the steps of a run that end it as a join, by two facets, and its deadline."""
        first, second = facets
        found = self._session.rows(_ENDS, (run_id, first, second, deadline_key))
        return [JoinStep(*row) for row in found]
