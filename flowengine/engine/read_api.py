"""What the engine tells about its runs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.exc import DBAPIError

from flowengine.engine import queries
from flowengine.engine.results import RunInfo, StepInfo
from flowengine.evaluator import EventDefinition, TaskDefinition
from flowengine.store import Database, events, servers, tasks
from flowengine.store.executors import SqlalchemyExecutor
from flowengine.store.servers import ServerDefinition


class ReadApi:
    """The part of an engine that people and their tools ask."""

    database: Database

    def get(self, run_id: str) -> RunInfo:
        """Return how a run stands."""
        try:
            return self._look(run_id)
        except DBAPIError as problem:
            if not problem.connection_invalidated:
                raise
            return self._look(run_id)  # the connection was gone, perhaps not the server

    def _look(self, run_id: str) -> RunInfo:
        with self.database.autocommit_read() as executor:
            return queries.run_info(executor, run_id)

    def find(self, beginning: str) -> RunInfo:
        """Return the run whose id begins so; it must be the only one."""
        with self.database.read() as connection:
            return queries.find_run(connection, beginning)

    def list(
        self, *, workflow: str | None = None, state: str | None = None, limit: int = 50
    ) -> Sequence[RunInfo]:
        """Return the newest runs."""
        with self.database.read() as connection:
            return queries.newest_runs(connection, workflow=workflow, state=state, limit=limit)

    def steps(self, run_id: str) -> Sequence[StepInfo]:
        """Return all steps of a run, in the order of their creation."""
        with self.database.read() as connection:
            queries.run_info(SqlalchemyExecutor(connection), run_id)
            return queries.step_infos(connection, run_id)

    def tasks(self, run_id: str) -> Sequence[TaskDefinition]:
        """Return all tries of a run, in the order of their creation."""
        with self.database.read() as connection:
            return tasks.load_run(connection, run_id)

    def events(self, run_id: str) -> Sequence[EventDefinition]:
        """Return what outside work a run asked for, and how far each has come."""
        with self.database.read() as connection:
            queries.run_info(SqlalchemyExecutor(connection), run_id)
            return events.load_run(connection, run_id)

    def servers(self) -> Sequence[ServerDefinition]:
        """Return the servers that have not left, with what they have handled."""
        with self.database.read() as connection:
            found = servers.alive(connection)
            servers.add_counts(connection, found)
            return found
