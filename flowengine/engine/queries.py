"""Read queries about runs, for people and their tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, overload

from flowengine.engine.event_feed import EventFeed, FeedReader
from flowengine.engine.filter_values import number_of_rows
from flowengine.engine.history import HistoryEntry, entries
from flowengine.engine.results import (
    RetryWait,
    RunInfo,
    RunMetrics,
    RunSummary,
    StepInfo,
)
from flowengine.engine.run_filters import RunFilters, chosen
from flowengine.engine.run_pages import RunPage, read_page
from flowengine.engine.run_waits import waits_of_runs
from flowengine.engine.step_infos import step_infos
from flowengine.engine.step_tries import (
    waiting_retries,
)
from flowengine.engine.waits_for import WaitsFor
from flowengine.errors import AmbiguousRun, InvalidFilter, UnknownRun
from flowengine.evaluator import EventDefinition, TaskDefinition
from flowengine.evaluator.records import row_key
from flowengine.evaluator.states import RunState
from flowengine.program.addresses import RowKind
from flowengine.store import Session, Store, codec
from flowengine.store.failures import DatabaseFailure, is_connection_lost
from flowengine.store.runs import ListedRun, StoredRun
from flowengine.store.servers import ServerDefinition
from flowengine.store.shown_values import shown_attributes, shown_error, shown_step
from flowengine.store.steps import StepPlace
from flowengine.tenants import visible_tenant

_MAX_SEQUENCE = 2**63 - 1
#: Steps that a page counts, of all its runs and at least of each.
_MAX_COUNTED, _MIN_COUNTED = 500_000, 1_000


class RunQueries:
    """Reads runs: with `tenant` those of this tenant alone, in an app that is bound to one its own.

    A run of another tenant is unknown, as one that does not exist.
    """

    def __init__(self, database: Store, bound: str = "", *, has_feed: bool = False) -> None:
        self._database, self._bound = database, bound
        self.feed = FeedReader(database, has_feed=has_feed)

    def get(self, run_id: str, *, tenant: str | None = None) -> RunInfo:
        """Return the state of a run, and what it waits for."""
        found = self.get_of(visible_tenant(self._bound, tenant), run_id)
        if found.is_final:
            return found
        with self._database.read() as session:
            return replace(found, waits_for=waits_of_runs(session, [found]).get(run_id))

    def poll(self, run_id: str) -> RunInfo:
        """Return the state of a run, without what it waits for: the cheapest query."""
        return self.get_of(visible_tenant(self._bound, None), run_id)

    def get_of(self, tenant: str | None, run_id: str) -> RunInfo:
        """Return the state of a run of this tenant, or with None of any, bound or not."""
        try:
            return self._get(run_id, tenant)
        except DatabaseFailure as problem:
            if not is_connection_lost(problem):
                raise
            return self._get(run_id, tenant)  # the connection was stale; the server may be up

    def _get(self, run_id: str, tenant: str | None) -> RunInfo:
        with self._database.autocommit_read() as session:
            return run_info(session, run_id, tenant)

    def find(self, beginning: str, *, tenant: str | None = None) -> RunInfo:
        """Return the run whose id has this prefix; raise AmbiguousRun if several do."""
        tenant = visible_tenant(self._bound, tenant)
        with self._database.read() as session:
            found = session.runs.with_prefix(beginning, tenant)
            if not found:
                raise UnknownRun(beginning)
            if len(found) > 1:
                raise AmbiguousRun(beginning)
            return _info(session, found[0], waits=waits_of_runs(session, found))

    def list(
        self, *, cursor: str | None = None, limit: int = 50, **filters: Unpack[RunFilters]
    ) -> RunPage[RunInfo]:
        """Return the newest runs that all these filters admit; raises InvalidFilter.

        With `id_prefix` they come in the order of their ids. Runs of calls that turns of agents
        have made are left out without `agents`, or a filter that names such a run: its workflow,
        label, error or server.

        The `cursor` of a page continues the list behind it. Each page is read through one index,
        and looks at a limited number of runs: so it may have fewer than `limit`, and a cursor.
        """
        with self._database.read() as session:
            wanted, kind = chosen(session, self._bound, filters)
            found, waits, following = read_page(
                session, wanted, kind, cursor, number_of_rows("limit", limit)
            )
            page = RunPage(_infos(session, found, waits))
        page.cursor = following
        return page

    def history(
        self, run_id: str, *, after: int = 0, limit: int = 1_000, tenant: str | None = None
    ) -> Sequence[HistoryEntry]:
        """Return the commits of a run behind the revision `after`, in order and without gaps."""
        tenant = visible_tenant(self._bound, tenant)
        with self._database.read() as session:
            if _visible(session, run_id, tenant) is None:
                raise UnknownRun(run_id)
            return entries(
                session, run_id, number_of_rows("after", after, 0), number_of_rows("limit", limit)
            )

    def steps(self, run_id: str, *, tenant: str | None = None) -> Sequence[StepInfo]:
        """Return all steps of a run, in the order of their creation."""
        tenant = visible_tenant(self._bound, tenant)
        with self._database.read() as session:
            run = _visible(session, run_id, tenant)
            if run is None:
                raise UnknownRun(run_id)
            rows = session.tasks.tries_of_run(run_id)
            return step_infos(session, run, session.steps.of_run(run_id), rows)

    def steps_page(
        self,
        run_id: str,
        after: StepPlace | None = None,
        *,
        limit: int,
        tenant: str | None = None,
    ) -> tuple[Sequence[StepInfo], StepPlace | None]:
        """Return some steps of a run in the order of their creation, and where the next begin.

        None: there are no more now.
        """
        tenant = visible_tenant(self._bound, tenant)
        with self._database.read() as session:
            run = _visible(session, run_id, tenant)
            if run is None:
                raise UnknownRun(run_id)
            found = session.steps.page(run_id, after or StepPlace(), limit + 1)
            steps, has_more = found[:limit], len(found) > limit
            rows = session.tasks.tries(run_id, [step.id for step in steps], errors=True)
            infos = step_infos(session, run, steps, rows)
        if not has_more:
            return infos, None
        last = steps[-1]
        return infos, StepPlace(last.created, last.index, last.id)

    def tasks(self, run_id: str, *, tenant: str | None = None) -> Sequence[TaskDefinition]:
        """Return all tries of a run, in the order of their creation; none of an unknown run."""
        tenant = visible_tenant(self._bound, tenant)
        with self._database.read() as session:
            if tenant is not None and _visible(session, run_id, tenant) is None:
                return []
            return session.tasks.of_run(run_id)

    @overload
    def events(self, run_id: str, *, tenant: str | None = None) -> Sequence[EventDefinition]: ...
    @overload
    def events(
        self,
        run_id: str | None = None,
        *,
        after: int,
        follow: bool = False,
        timeout: float | None = None,
        tenant: str | None = None,
    ) -> EventFeed: ...
    def events(
        self,
        run_id: str | None = None,
        *,
        after: int | None = None,
        follow: bool = False,
        timeout: float | None = None,
        tenant: str | None = None,
    ) -> Sequence[EventDefinition] | EventFeed:
        """Return the events of a run: the outside work it asked for, with its state.

        With `after`, return the feed of their changes behind that sequence number, 0: from the
        beginning; without a run, of all runs. It is iterated with ``for`` or ``async for``. With
        `follow` it waits for more, until the run has ended, or no change came for `timeout`
        seconds.
        """
        tenant = visible_tenant(self._bound, tenant)
        if after is not None:
            if number_of_rows("after", after, 0) > _MAX_SEQUENCE:
                raise InvalidFilter.of("after", after, "a sequence number of the feed")
            return EventFeed(self.feed, run_id, after, tenant, follow=follow, timeout=timeout)
        if run_id is None or follow:
            raise InvalidFilter.of("after", after, "a sequence number, 0: from the beginning")
        with self._database.read() as session:
            run_info(session, run_id, tenant)
            return session.tasks.events_of_run(run_id)

    def metrics(self, *, tenant: str | None = None) -> Sequence[RunMetrics]:
        """Count the unfinished runs of each tenant that has any."""
        tenant = visible_tenant(self._bound, tenant)
        with self._database.read() as session:
            return run_metrics(session, tenant)

    def servers(self) -> Sequence[ServerDefinition]:
        """Return the registered servers, with the number of tries each has run."""
        with self._database.read() as session:
            found = session.servers.alive()
            session.servers.load_handled(found)
            return found


def run_info(session: Session, run_id: str, tenant: str | None = None) -> RunInfo:
    row = _visible(session, run_id, tenant)
    if row is None:
        raise UnknownRun(run_id)
    return _info(session, row)


def run_infos(session: Session, run_ids: Sequence[str]) -> list[RunInfo]:
    """Return these runs, as a list shows them."""
    rows = session.lists.load(run_ids)
    return _infos(session, rows, waits_of_runs(session, rows))


def _infos(
    session: Session, rows: Sequence[StoredRun], waits: Mapping[str, WaitsFor]
) -> list[RunInfo]:
    retries = _retries(session, rows)
    return [_info(session, row, retries.get(row.id), waits) for row in rows]


def _visible(session: Session, run_id: str, tenant: str | None) -> StoredRun | None:
    """Return a run of this tenant, or with None of any."""
    row = session.runs.get(run_id)
    return row if row is not None and tenant in (None, row.tenant) else None


def run_summaries(
    session: Session,
    *,
    workflow: str | None = None,
    state: str | None = None,
    before: str | None = None,
    tenant: str | None = None,
    agents: bool = False,
    limit: int,
) -> list[RunSummary]:
    """Return the newest runs as one line each; with `before`, those that are listed after it.

    With `agents` those of calls of turns, otherwise those of everybody else.
    """
    last = None
    if before is not None and (last := _visible(session, before, tenant)) is None:
        raise UnknownRun(before)
    most = max(_MAX_COUNTED // limit, _MIN_COUNTED)
    states = [state] if state else RunState.ALL
    found = session.runs.summaries(
        states=states, workflow=workflow, before=last, tenant=tenant, agents=agents, limit=limit
    )
    progress = session.steps.progress([row.id for row in found], most)
    reported = session.reports.recorded_counts([row.id for row in found], most)
    retries, waits = _retries(session, found), waits_of_runs(session, found)
    return [
        RunSummary(
            id=row.id,
            workflow=row.workflow,
            state=row.state,
            error=_error(row),
            alarm=row.alarm,
            created=row.created,
            finished=row.finished,
            open_steps=row.open_steps,
            key=row.idempotency_key or row.released_key,
            steps=progress[row.id][1],
            steps_ended=min(progress[row.id][0] + reported[row.id], progress[row.id][1]),
            is_counted=progress[row.id][1] < most,
            tenant=row.tenant,
            retry=retries.get(row.id),
            waits_for=waits.get(row.id),
        )
        for row in found
    ]


def _error(row: StoredRun | ListedRun) -> dict[str, Any] | None:
    return shown_error(row.error, row.workflow.rpartition(".")[2], row.error_type)


def run_metrics(session: Session, tenant: str | None) -> list[RunMetrics]:
    return [
        RunMetrics(row.tenant, row.unfinished, row.alarms, row.oldest)
        for row in session.runs.metrics(tenant)
    ]


def run_inputs(session: Session, run: RunInfo) -> dict[str, Any]:
    """Return what a run was started with: the parameters of its root."""
    key = row_key(RowKind.STEP, run.workflow.rpartition(".")[2])
    root = session.steps.load({run.id: [key]}, decode=shown_step)[run.id].get(key)
    return session.payloads.shown(root.params) if root else {}


def _retries(session: Session, runs: Sequence[Any]) -> dict[str, RetryWait]:
    waiting = [r.id for r in runs if r.state in RunState.OPEN and r.open_steps]
    return waiting_retries(session, waiting)


def _info(
    session: Session,
    row: StoredRun,
    retry: RetryWait | None = None,
    waits: Mapping[str, WaitsFor] | None = None,
) -> RunInfo:
    outputs = None
    if row.outputs is not None:
        outputs = session.payloads.shown(shown_attributes(row.outputs))
    return RunInfo(
        id=row.id,
        workflow=row.workflow,
        state=row.state,
        outputs=outputs,
        error=_error(row),
        alarm=row.alarm,
        created=row.created,
        updated=row.updated,
        finished=row.finished,
        revision=row.revision,
        open_steps=row.open_steps,
        key=row.idempotency_key or row.released_key,
        priority=row.priority,
        labels=codec.load(row.labels) or {},
        parent=row.parent_run_id,
        tenant=row.tenant,
        retry=retry,
        waits_for=(waits or {}).get(row.id),
        forked_from=row.forked_from,
    )
