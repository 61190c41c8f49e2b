"""Read queries about runs, for people and their tools."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.exc import DBAPIError

from flowengine.engine import queries
from flowengine.engine.results import RunInfo, StepInfo
from flowengine.evaluator import EventDefinition, TaskDefinition
from flowengine.store import Store
from flowengine.store.servers import ServerDefinition


class RunQueries:
    """Reads the runs of one database."""

    def __init__(self, database: Store) -> None:
        self._database = database

    def get(self, run_id: str) -> RunInfo:
        """Return the state of a run."""
        try:
            return self._run_info(run_id)
        except DBAPIError as problem:
            if not problem.connection_invalidated:
                raise
            return self._run_info(run_id)  # the pooled connection was stale; the server may be up

    def _run_info(self, run_id: str) -> RunInfo:
        with self._database.autocommit_read() as session:
            return queries.run_info(session, run_id)

    def find(self, beginning: str) -> RunInfo:
        """Return the run whose id has this prefix; raise AmbiguousRun if several do."""
        with self._database.read() as session:
            return queries.find_run(session, beginning)

    def list(
        self, *, workflow: str | None = None, state: str | None = None, limit: int = 50
    ) -> Sequence[RunInfo]:
        """Return the newest runs."""
        with self._database.read() as session:
            return queries.newest_runs(session, workflow=workflow, state=state, limit=limit)

    def steps(self, run_id: str) -> Sequence[StepInfo]:
        """Return all steps of a run, in the order of their creation."""
        with self._database.read() as session:
            queries.run_info(session, run_id)
            return queries.step_infos(session, run_id)

    def tasks(self, run_id: str) -> Sequence[TaskDefinition]:
        """Return all tries of a run, in the order of their creation."""
        with self._database.read() as session:
            return session.tasks.of_run(run_id)

    def events(self, run_id: str) -> Sequence[EventDefinition]:
        """Return the events of a run: the outside work it asked for, with its state."""
        with self._database.read() as session:
            queries.run_info(session, run_id)
            return session.tasks.events_of_run(run_id)

    def servers(self) -> Sequence[ServerDefinition]:
        """Return the registered servers, with the number of tries each has run."""
        with self._database.read() as session:
            found = session.servers.alive()
            session.servers.load_handled(found)
            return found
