"""Workflows that are closed for new starts: the statement that inserts a run asks for its row.

Child runs and calls of agents are inserted all the same: what is running goes on. So a start reads
nothing more, and no start slips through between a question and its answer.
"""

from __future__ import annotations

from typing import NamedTuple

from flowengine.store.parts import Part

#: The condition under which a run is inserted; {workflow}, {parent} and {call} are of its row.
IS_ADMITTED = (
    "({parent} IS NOT NULL OR {call} IS NOT NULL OR NOT EXISTS (SELECT 1 "
    "FROM flowengine_closed c WHERE c.workflow = {workflow}))"
)
_COLUMNS = "workflow, actor, reason, closed"
_CLOSE = (
    f"INSERT INTO flowengine_closed ({_COLUMNS}) VALUES (%s, %s, %s, %s) ON CONFLICT (workflow) "
    "DO UPDATE SET actor = excluded.actor, reason = excluded.reason, closed = excluded.closed "
    "RETURNING workflow"
)


class Closing(NamedTuple):
    """A closed workflow: by whom, why and when."""

    workflow: str
    actor: str
    reason: str
    closed: int  #: milliseconds since the epoch


class ClosedWorkflows(Part):
    def get(self, workflow: str) -> Closing | None:
        text = f"SELECT {_COLUMNS} FROM flowengine_closed WHERE workflow = %s"
        rows = self._session.rows(text, (workflow,))
        return Closing(*rows[0]) if rows else None

    def all(self) -> list[Closing]:
        text = f"SELECT {_COLUMNS} FROM flowengine_closed ORDER BY workflow"
        return [Closing(*row) for row in self._session.rows(text, ())]

    def close(self, closing: Closing) -> None:
        self._session.rows(_CLOSE, tuple(closing))

    def open(self, workflow: str) -> bool:
        """Open a workflow; return whether it was closed."""
        text = "DELETE FROM flowengine_closed WHERE workflow = %s RETURNING workflow"
        return bool(self._session.rows(text, (workflow,)))
