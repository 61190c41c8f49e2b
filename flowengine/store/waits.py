"""Rows that tell what runs and steps wait for. Each query uses an index and has a limit."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from flowengine.evaluator.records import ID_PREFIX
from flowengine.evaluator.states import MailboxState, ObjectType
from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part
from flowengine.store.shown_values import shown_attributes
from flowengine.store.tables import (
    STEP_IS_MAILBOX,
    TASK_IS_RETRY,
    TASK_IS_RUNNING,
    TASK_IS_WAITING,
    TIMER_IS_SET,
)

_MANY = 1_000  #: rows that one query returns
#: The ids of a run's rows begin like its own: a range of an index.
_WITHIN = (
    f"{{column}} >= substr(w.value, 1, {ID_PREFIX}) "
    f"AND {{column}} < substr(w.value, 1, {ID_PREFIX}) || 'g'"
)
_QUESTIONS = (
    "SELECT s.run_id, s.path, s.params, s.updated FROM {{IDS}} {{JOIN}} flowengine_step s "
    "ON s.run_id = w.value WHERE {is_mailbox} AND s.state = '{waiting}' AND NOT s.superseded "
    "LIMIT {most}"
).format(
    is_mailbox=STEP_IS_MAILBOX.replace("object_type", "s.object_type"),
    waiting=MailboxState.WAITING,
    most=_MANY,
)
_TIMERS = (
    "SELECT t.run_id, t.step_id, t.kind, t.due, t.created FROM {IDS} {JOIN} flowengine_timer t "
    f"ON {_WITHIN.format(column='t.id')} WHERE t.run_id = w.value AND t.{TIMER_IS_SET} "
    f"ORDER BY t.due LIMIT {_MANY}"
)
_CHILDREN = (
    "SELECT r.parent_run_id, r.id, r.created FROM {IDS} {JOIN} flowengine_run r "
    "ON r.parent_run_id = w.value WHERE r.finished IS NULL AND r.waiting_step_key IS NOT NULL "
    f"ORDER BY r.created LIMIT {_MANY}"
)
_RUNNING = (
    "SELECT DISTINCT w.value FROM {IDS} {JOIN} flowengine_task t "
    f"ON {_WITHIN.format(column='t.step_id')} WHERE t.run_id = w.value "
    f"AND t.{TASK_IS_RUNNING}"
)
_POSTPONED = (
    "SELECT t.run_id, t.step_path, t.name, t.due, t.limit_key, t.lease, t.updated "
    f"FROM flowengine_task t WHERE {TASK_IS_RETRY} AND t.due > %s "
    f"AND t.run_id IN (SELECT w.value FROM {{IDS}}) ORDER BY t.due LIMIT {_MANY}"
)
_HAS_QUEUES = "SELECT 1 FROM flowengine_queue LIMIT 1"
_LIMITED = (
    "SELECT t.run_id, q.blocked_on, t.updated, t.due FROM flowengine_task t "
    "JOIN flowengine_queue q ON q.id = t.queue "
    f"WHERE t.run_id = %s AND t.{TASK_IS_WAITING} AND q.blocked_on IS NOT NULL LIMIT 1"
)
_WAKES = (
    "SELECT t.step_id, t.due FROM {IDS} {JOIN} flowengine_timer t ON t.id = w.value "
    f"WHERE t.{TIMER_IS_SET}"
)


class Question(NamedTuple):
    """A mailbox at which a step waits."""

    run_id: str
    name: str
    step_key: str  #: empty if the mailbox cannot be read
    since: int


class Timer(NamedTuple):
    run_id: str
    step_id: str
    kind: str
    due: int
    since: int


class Child(NamedTuple):
    """A child run that has not ended, and for which a step waits."""

    run_id: str  #: of the parent
    id: str
    since: int


class Postponed(NamedTuple):
    """A pending task that is due later: a retry, or one that is parked behind a circuit breaker."""

    run_id: str
    step_path: str
    facet: str
    due: int
    limit_key: str | None
    lease: int
    since: int


class Limited(NamedTuple):
    """A task that waits for the key of a limit or a rate."""

    run_id: str
    key: str
    since: int
    due: int


class WaitQueries(Part):
    def questions(self, run_ids: Collection[str]) -> list[Question]:
        assert ObjectType.MAILBOX in STEP_IS_MAILBOX
        return [
            Question(run_id, path, str(shown_attributes(params).get("step", "")), since)
            for run_id, path, params, since in self._rows(_QUESTIONS, run_ids)
        ]

    def timers(self, run_ids: Collection[str]) -> list[Timer]:
        return [Timer(*row) for row in self._rows(_TIMERS, run_ids)]

    def children(self, run_ids: Collection[str]) -> list[Child]:
        return [Child(*row) for row in self._rows(_CHILDREN, run_ids)]

    def running(self, run_ids: Collection[str]) -> set[str]:
        """Return the runs of which a worker runs a task."""
        return {row[0] for row in self._rows(_RUNNING, run_ids)}

    def postponed(self, run_ids: Collection[str], now: int) -> list[Postponed]:
        text = in_dialect(_POSTPONED, self._session.dialect)
        return [
            Postponed(*row) for row in self._session.rows(text, (now, json.dumps(sorted(run_ids))))
        ]

    def limited(self, run_ids: Collection[str]) -> list[Limited]:
        """Return a task of each run that waits for a limit or a rate; none: one short query."""
        if not run_ids or not self._session.rows(_HAS_QUEUES):
            return []
        return [
            Limited(*row) for run_id in run_ids for row in self._session.rows(_LIMITED, (run_id,))
        ]

    def wakes(self, timer_ids: Iterable[str]) -> dict[str, int]:
        """Return when timers are due, by the id of their step."""
        return dict(self._rows(_WAKES, list(timer_ids)))

    def _rows(self, template: str, ids: Collection[str]) -> list[tuple[Any, ...]]:
        text = in_dialect(template, self._session.dialect)
        return self._session.rows(text, (json.dumps(sorted(ids)),)) if ids else []
