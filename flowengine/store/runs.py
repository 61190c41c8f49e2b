"""Runs: their rows, and the row lock that orders commits to a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, bindparam, func, or_, select

from flowengine.evaluator import RunView, Step
from flowengine.evaluator.records import Waiter
from flowengine.evaluator.states import RunState, StepState
from flowengine.store.backend import in_dialect
from flowengine.store.commits import RunHeader
from flowengine.store.parts import Part
from flowengine.store.records import STEP_COLUMNS, step_from
from flowengine.store.tables import RUN_IS_CHILD, RunRow


class StoredRun(NamedTuple):
    """A run as it is stored."""

    id: str
    workflow: str
    state: str
    outputs: str | None
    error: str | None
    alarm: str | None
    created: int
    updated: int
    finished: int | None
    revision: int
    open_steps: int
    idempotency_key: str | None
    released_key: str | None
    priority: int
    labels: str | None
    parent_run_id: str | None
    root_run_id: str
    depth: int
    tenant: str
    program_hash: str
    generation: int
    forked_from: str | None
    error_type: str | None


class ListedRun(NamedTuple):
    """A run as one line of a list, without its values."""

    id: str
    workflow: str
    state: str
    open_steps: int
    error: str | None
    alarm: str | None
    idempotency_key: str | None
    released_key: str | None
    created: int
    updated: int
    finished: int | None
    tenant: str
    error_type: str | None


class RunCount(NamedTuple):
    """The unfinished runs of one tenant."""

    tenant: str
    unfinished: int
    alarms: int
    oldest: int


class StartingStep(NamedTuple):
    """A step that starts a child run; the last three are None if there is no such step."""

    run_state: str
    path: str | None
    state: str | None
    superseded: bool | None


table = RunRow.__table__
_columns = table.c[StoredRun._fields]
_GET = f"SELECT {', '.join(StoredRun._fields)} FROM flowengine_run WHERE id = %s"
_COUNT_OPEN = (
    "SELECT count(*) FROM (SELECT 1 FROM flowengine_run WHERE tenant = %s AND workflow = %s "
    "AND finished IS NULL LIMIT %s) AS o"
)
_OPEN_CHILDREN = (
    "SELECT r.id, s.path FROM flowengine_run r LEFT JOIN flowengine_step s "
    "ON s.id = r.parent_step_id WHERE r.parent_run_id = %s AND r.id > %s "
    "AND r.finished IS NULL AND r.on_cancel IS NULL"
)
# Not the open child run of a step that has failed: somebody retried it, and the new step waits.
_IS_SUPERSEDED = (
    f" AND s.superseded AND (r.waiting_step_key IS NULL OR s.state <> '{StepState.ERROR}')"
)
# Not those of a step of the same path that runs again.
_IS_BELOW = (
    " AND (s.path = %s OR substr(s.path, 1, %s) IN (%s, %s)) "
    f"AND s.state IN ({', '.join(repr(state) for state in sorted(StepState.FINAL))})"
)
_STARTS_CHILD = (
    "SELECT r.state, s.path, s.state, s.superseded FROM flowengine_run r LEFT JOIN flowengine_step "
    "s ON s.id = %s WHERE r.id = %s"
)
_MOVE = "UPDATE flowengine_run SET program_hash = %s WHERE id = %s RETURNING id"
_COUNT_BELOW = (
    "SELECT count(*) FROM (SELECT 1 FROM flowengine_run "
    f"WHERE root_run_id = %s AND {RUN_IS_CHILD} LIMIT %s) AS below"
)
_WITH_PREFIX = select(*_columns).where(table.c.id.startswith(bindparam("prefix"))).limit(2)
# Hidden from the planner: the runs of a tenant are read by `flowengine_run_created`, never those
# of all tenants in that state.
_state = table.c.state.concat("")
# Each is the condition of two partial indexes.
_is_listed, _is_of_agent = table.c.agent_call.is_(None), table.c.agent_call.is_not(None)
_SUMMARY = select(*table.c[ListedRun._fields]).order_by(table.c.created.desc(), table.c.id)
_LIVE_PROGRAMS = (
    select(table.c.workflow, table.c.program_hash, func.count().label("runs"), func.min(table.c.id))
    .where(table.c.state.in_(sorted(set(RunState.ALL) - RunState.FINAL)))
    .group_by(table.c.workflow, table.c.program_hash)
    .order_by(table.c.workflow, func.min(table.c.created))
)
_METRICS = (
    select(
        table.c.tenant,
        func.count().label("unfinished"),
        func.count(table.c.alarm).label("alarms"),
        func.min(table.c.created).label("oldest"),
    )
    .where(table.c.state.in_(RunState.OPEN))
    .group_by(table.c.tenant)
    .order_by(table.c.tenant)
)
_HEADER = (
    *("id", "workflow", "program_hash", "generation", "state", "priority", "open_steps"),
    *("alarm", "revision", "task_count", "parent_run_id", "parent_step_id", "waiting_step_key"),
    *("step_count", "value_bytes", "tenant", "deadline", "created"),
    *("singleton_key", "agent_call"),
)
_SELECTED = ", ".join(f"r.{name}" for name in _HEADER)
_LOCK = f"SELECT {_SELECTED} FROM flowengine_run r WHERE r.id = %s"
_KEY = STEP_COLUMNS.index("key")
_HEADERS = f"SELECT {_SELECTED} FROM {{IDS}} {{JOIN}} flowengine_run r ON r.id = w.value"
_ROWS = ", ".join(f"{row}.{name}" for row in ("s", "p", "c") for name in STEP_COLUMNS)
_HEADERS_AND_ANCESTORS = (
    f"SELECT {_SELECTED}, {_ROWS} FROM {{PAIRS}} "
    "{JOIN} flowengine_run r ON r.id = {PAIR_RUN} "
    "{JOIN} flowengine_step s ON s.run_id = r.id AND s.key = {PAIR_KEY} AND NOT s.superseded "
    "LEFT JOIN flowengine_step p ON p.run_id = s.run_id AND p.key = s.parent AND NOT p.superseded "
    "LEFT JOIN flowengine_step c ON c.run_id = p.run_id AND c.key = p.parent AND NOT c.superseded"
)


class Runs(Part):
    """Reads and locks runs."""

    def get(self, run_id: str) -> StoredRun | None:
        rows = self._session.rows(_GET, (run_id,))
        return StoredRun(*rows[0]) if rows else None

    def header(self, run_id: str) -> RunHeader | None:
        """Return a run's header, without a lock."""
        rows = self._session.rows(_LOCK, (run_id,))
        return _header(rows[0]) if rows else None

    def count_open(self, tenant: str, workflow: str, most: int) -> int:
        """Return the number of open runs of a workflow, counted up to `most`."""
        ((count,),) = self._session.rows(_COUNT_OPEN, (tenant, workflow, most))
        return int(count)

    def open_children(
        self, run_id: str, after: str, limit: int, *, below: str = "", superseded: bool = False
    ) -> list[tuple[str, str]]:
        """Return the next open child runs that follow the run's cancellation.

        Each with the path of the step that started it: with `below` a step with this path, or one
        below it, that has ended; with `superseded` a superseded one.
        """
        text = _OPEN_CHILDREN
        values: list[object] = [run_id, after]
        if superseded:
            text += _IS_SUPERSEDED
        if below:
            text += _IS_BELOW
            values += [below, len(below) + 1, f"{below}.", f"{below}["]
        rows = self._session.rows(f"{text} ORDER BY r.id LIMIT %s", (*values, limit))
        return [(child_id, path or "") for child_id, path in rows]

    def starting_step(self, run_id: str, step_id: str) -> StartingStep | None:
        """Return the states of a run and of a step of it that starts a child run."""
        rows = self._session.rows(_STARTS_CHILD, (step_id, run_id))
        return StartingStep(*rows[0]) if rows else None

    def move(self, run_id: str, program_hash: str) -> None:
        """Give a locked run another program."""
        self._session.rows(_MOVE, (program_hash, run_id))

    def count_below(self, root_run_id: str, most: int) -> int:
        """Return the number of child runs below a root run, counted up to `most`."""
        ((count,),) = self._session.rows(_COUNT_BELOW, (root_run_id, most))
        return int(count)

    def with_prefix(self, prefix: str, tenant: str | None = None) -> list[StoredRun]:
        """Return the first two runs whose id has this prefix; with `tenant` only its own."""
        statement = _WITH_PREFIX if tenant is None else _WITH_PREFIX.where(_is_of(tenant))
        return [StoredRun(*row) for row in self._session.execute(statement, {"prefix": prefix})]

    def summaries(
        self,
        *,
        states: Sequence[str],
        workflow: str | None,
        before: StoredRun | None,
        tenant: str | None = None,
        agents: bool = False,
        limit: int,
    ) -> list[ListedRun]:
        """Return the newest runs, without their values; with `before` those listed after it.

        One query per state, because an index has the runs of a state in order: a query for all
        states would read and sort every run. Another index has those of a tenant in order.
        """
        statement = _SUMMARY.limit(limit).where(_is_of_agent if agents else _is_listed)
        if workflow:
            statement = statement.where(table.c.workflow.icontains(workflow, autoescape=True))
        if before is not None:
            is_older = table.c.created < before.created
            is_beside = and_(table.c.created == before.created, table.c.id > before.id)
            # The first condition follows from the second, but can use the index.
            statement = statement.where(table.c.created <= before.created, or_(is_older, is_beside))
        if tenant is not None:
            of_tenant = statement.where(_is_of(tenant), _state.in_(states))
            return [ListedRun(*row) for row in self._session.execute(of_tenant)]
        found: list[ListedRun] = []
        for state in states:
            rows = self._session.execute(statement.where(table.c.state == state))
            found += [ListedRun(*row) for row in rows]
        return sorted(found, key=lambda run: (-run.created, run.id))[:limit]

    def live_programs(
        self, tenant: str | None, workflow: str | None
    ) -> list[tuple[str, str, int, str]]:
        """Return each program of unfinished runs: workflow, hash, number of runs, a run's id."""
        statement = _LIVE_PROGRAMS if tenant is None else _LIVE_PROGRAMS.where(_is_of(tenant))
        if workflow:
            statement = statement.where(table.c.workflow == workflow)
        found: dict[tuple[str, str], tuple[int, str]] = {}
        for condition in (_is_listed, _is_of_agent):
            for name, digest, runs, run_id in self._session.execute(statement.where(condition)):
                others, first = found.get((name, digest), (0, run_id))
                found[name, digest] = (others + runs, min(first, run_id))
        return [(*key, *about) for key, about in found.items()]

    def metrics(self, tenant: str | None) -> list[RunCount]:
        """Count the unfinished runs of a tenant, or with None of each that has any."""
        statement = _METRICS if tenant is None else _METRICS.where(_is_of(tenant))
        found: dict[str, RunCount] = {}
        for condition in (_is_listed, _is_of_agent):
            for row in self._session.execute(statement.where(condition)):
                other = found.get(row.tenant, RunCount(row.tenant, 0, 0, row.oldest))
                found[row.tenant] = RunCount(
                    row.tenant,
                    other.unfinished + row.unfinished,
                    other.alarms + row.alarms,
                    min(other.oldest, row.oldest),
                )
        return [found[name] for name in sorted(found)]

    # --- headers: the part that an evaluation reads and writes ---

    def lock(self, run_id: str, *, wait: bool = True) -> RunHeader | None:
        """Lock the run's row; return its header as it is once the lock is held.

        With `wait=False`, return None if another transaction holds the lock.
        """
        dialect = self._session.dialect
        text = f"{_LOCK}{dialect.LOCK}{'' if wait else dialect.SKIP_LOCKED}"
        rows = self._session.rows(text, (run_id,))
        return _header(rows[0]) if rows else None

    def headers(self, run_ids: Iterable[str]) -> dict[str, RunHeader]:
        """Return the current headers of these runs, without a lock."""
        text = in_dialect(_HEADERS, self._session.dialect)
        rows = self._session.rows(text, (json.dumps(sorted(run_ids)),))
        return {row[0]: _header(row) for row in rows}

    def headers_and_ancestors(
        self, step_keys: Mapping[str, Iterable[str]]
    ) -> dict[str, tuple[RunHeader, dict[str, Step]]]:
        """Return each run's header, these steps of it, and the two rows above each.

        One statement, so one snapshot.
        """
        pairs = [{"run_id": run, "key": key} for run, keys in step_keys.items() for key in keys]
        found: dict[str, tuple[RunHeader, dict[str, Step]]] = {}
        width = len(STEP_COLUMNS)
        text = in_dialect(_HEADERS_AND_ANCESTORS, self._session.dialect)
        for row in self._session.rows(text, (json.dumps(pairs),)):
            _, steps = found.setdefault(row[0], (_header(row), {}))
            for at in range(len(_HEADER), len(row), width):
                if row[at] is not None and row[at + _KEY] not in steps:
                    steps[row[at + _KEY]] = step_from(row[at : at + width])
        return found


def _is_of(tenant: str) -> ColumnElement[bool]:
    return table.c.tenant == tenant


def _header(row: Sequence[Any]) -> RunHeader:
    run_id, workflow, program_hash, generation, state, priority, open_steps, alarm = row[:8]
    view = RunView(
        run_id, workflow, program_hash, generation, state, priority, open_steps, alarm=alarm
    )
    if row[12] is not None:
        view.waiter = Waiter(row[10], row[11], row[12])
    view.step_count, view.value_bytes, view.tenant, view.deadline = row[13:17]
    view.created = 0 if row[10] is not None else row[17]
    view.singleton, view.agent_call = row[18:20]
    return RunHeader(view, row[8], row[9])
