"""Tasks: read queries. One row per try of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import TextClause

from flowengine.evaluator import EventDefinition, TaskDefinition
from flowengine.evaluator.states import event_state, is_ended_from_outside
from flowengine.store import codec
from flowengine.store.parts import Part, statement
from flowengine.store.records import TASK_COLUMNS, task_from
from flowengine.store.shown_values import shown_attributes, shown_task
from flowengine.store.tables import TASK_IS_RETRY


class StoredTry(NamedTuple):
    """A task as one of the tries of its step, without its data."""

    run_id: str
    step_id: str
    name: str
    try_number: int
    losses: int
    state: str
    task_list_name: str
    created: int
    updated: int
    lease: int
    due: int
    started: int | None
    limit_key: str | None
    limits: str | None
    queue: str | None
    outcome: str | None
    server_id: str | None
    pid: int | None
    progress: str | None
    waited_backoff: int | None
    waited_limit: int | None
    waited_rate: int | None
    waited_circuit: int | None
    waited_hold: int | None
    error: str | None  #: None also if errors were not asked for
    handed: str | None  #: the result of a try that has handed its step to a child run


class WaitingRetry(NamedTuple):
    """A task that is not due yet, after an earlier try of its step."""

    run_id: str
    step_id: str
    step_path: str
    program_hash: str
    name: str
    try_number: int
    due: int


class LastFailure(NamedTuple):
    """The last try of a step that has an error."""

    step_id: str
    try_number: int
    updated: int
    error: str


def _tries(where: str, *lists: str, errors: bool) -> TextClause:
    special = {
        "error": "error" if errors else "NULL AS error",
        "handed": "CASE WHEN outcome = 'handed' THEN result END AS handed",
    }
    columns = ", ".join(special.get(name, name) for name in StoredTry._fields)
    sql = f"SELECT {columns} FROM flowengine_task WHERE {where} ORDER BY position"
    return statement(sql, *lists)


_OF_RUN = statement(
    f"SELECT {', '.join(f't.{name}' for name in TASK_COLUMNS)}, s.params FROM flowengine_task t "
    "JOIN flowengine_step s ON s.id = t.step_id WHERE t.run_id = :run ORDER BY t.position"
)
_BY_ID = statement(
    f"SELECT {', '.join(TASK_COLUMNS)}, outcome FROM flowengine_task WHERE uuid = :task"
)
_TRIES_OF_RUN = _tries("run_id = :run", errors=True)
_TRIES = _tries("run_id = :run AND step_id IN :ids", "ids", errors=False)
_FAILED_TRIES = _tries("run_id = :run AND step_id IN :ids", "ids", errors=True)
_WAITING_RETRIES = statement(
    f"SELECT {', '.join(WaitingRetry._fields)} FROM flowengine_task "
    f"WHERE {TASK_IS_RETRY} AND due > :now AND run_id IN :ids AND try_number + losses > 1 "
    "ORDER BY due LIMIT :most",
    "ids",
)
_LAST_FAILED = statement(
    f"SELECT {', '.join(LastFailure._fields)} FROM flowengine_task "
    "WHERE run_id IN :runs AND step_id IN :ids "
    "AND error IS NOT NULL ORDER BY position",
    "runs",
    "ids",
)
_EVENTS = statement(
    # Every column by name: after a migration that adds one, a prepared `*` would fail.
    "SELECT e.id, e.step_id, e.run_id, e.event_type, s.state AS step_state, s.params "
    "FROM flowengine_event e JOIN flowengine_step s ON s.id = e.step_id "
    "WHERE e.run_id = :run ORDER BY e.created, s.path"
)


_RESULTS = statement(
    "SELECT step_key, result FROM flowengine_task WHERE run_id = :run AND step_key IN :ids "
    "AND outcome = 'succeeded' ORDER BY position",
    "ids",
)


class Tasks(Part):
    """Reads tasks, and the events whose tries they are."""

    def of_run(self, run_id: str) -> list[TaskDefinition]:
        """Return all tasks of a run for a reader, with their data, in the order of creation."""
        shown = self._session.payloads.shown
        return [
            shown_task(row, shown(shown_attributes(row.params)))
            for row in self._session.execute(_OF_RUN, {"run": run_id}).all()
        ]

    def by_id(self, task_id: str) -> tuple[TaskDefinition, str | None] | None:
        """Return a task without its data, and how it ended."""
        row = self._session.execute(_BY_ID, {"task": task_id}).first()
        return None if row is None else (task_from(row, {}), row.outcome)

    def event_results(
        self, run_id: str, step_keys: Iterable[str]
    ) -> dict[str, dict[str, Any] | None]:
        """Return the last result that a task of each step reported; None if no task did."""
        found: dict[str, dict[str, Any] | None] = dict.fromkeys(step_keys)
        for row in self._in_portions(_RESULTS, list(found), run=run_id):
            found[row.step_key] = codec.attributes(row.result)
        return found

    def last_tries(self, run_id: str, step_ids: Sequence[str]) -> dict[str, StoredTry]:
        """Return the last try of each of these steps of a run, without its error."""
        return {one.step_id: one for one in self.tries(run_id, step_ids)}  # the last wins

    def tries_of_run(self, run_id: str) -> list[StoredTry]:
        """Return all tries of a run in the order of their creation, with their errors."""
        rows = self._session.execute(_TRIES_OF_RUN, {"run": run_id})
        return [StoredTry(*row) for row in rows]

    def tries(
        self, run_id: str, step_ids: Sequence[str], *, errors: bool = False
    ) -> list[StoredTry]:
        """Return the tries of these steps; with `errors`, how they failed."""
        query = _FAILED_TRIES if errors else _TRIES
        return [StoredTry(*row) for row in self._in_portions(query, step_ids, run=run_id)]

    def waiting_retries(self, run_ids: Sequence[str], now: int, most: int) -> list[WaitingRetry]:
        """Return retries of these runs that are not due yet, the next first."""
        rows = self._in_portions(_WAITING_RETRIES, run_ids, now=now, most=most)
        found = [WaitingRetry(*row) for row in rows]
        return sorted(found, key=lambda retry: (retry.due, retry.step_path))

    def last_failed(
        self, run_ids: Sequence[str], step_ids: Sequence[str]
    ) -> dict[str, LastFailure]:
        """Return the last failed try of each of these steps."""
        rows = self._in_portions(_LAST_FAILED, step_ids, runs=list(run_ids))
        return {row.step_id: LastFailure(*row) for row in rows}

    def events_of_run(self, run_id: str) -> list[EventDefinition]:
        """Return the events of a run for a reader; the state is that of step and task."""
        rows = self._session.execute(_EVENTS, {"run": run_id}).all()
        tries = self.last_tries(run_id, [row.step_id for row in rows])
        states = {row.step_id: (row.step_state, _state_of(tries.get(row.step_id))) for row in rows}
        ended: dict[str, str] = {}
        if any(is_ended_from_outside(*of_step) for of_step in states.values()):
            ended = self._session.history.ended_events(run_id)
        return [
            EventDefinition(
                id=row.id,
                step_id=row.step_id,
                workflow_id=row.run_id,
                state=event_state(*states[row.step_id], ended.get(row.step_id)),
                event_type=row.event_type,
                payload=self._session.payloads.shown(shown_attributes(row.params)),
            )
            for row in rows
        ]


def _state_of(tried: StoredTry | None) -> str | None:
    return None if tried is None else tried.state
