"""Singleton runs: of those with the same key one is open at a time.

A unique index on the open runs decides. A run that waits for another one has the key in a column of
its own, and its inputs in a fact that is marked as consumed: so neither recovery nor a worker looks
at it. After the end of the run before, it gets the key, and its fact is released.
"""

from __future__ import annotations

import logging

from flowengine.engine import run_places
from flowengine.engine.staging import CommitEffects
from flowengine.engine.start_request import StartRequest
from flowengine.errors import ActionRefused, AlreadyRunning
from flowengine.evaluator.records import RunView, id_within
from flowengine.evaluator.states import RunState
from flowengine.store import Session, Store
from flowengine.store.commit_rows import RunOrigin
from flowengine.store.commits import CommitPlan, RunHeader
from flowengine.store.failures import KeyTaken

log = logging.getLogger("flowengine")

_ATTEMPTS = 10  # of taking a place

STARTED = "Started"  #: the kind of the fact with the inputs


class SingletonEnded(Exception):
    """The run that had the key has ended at the same moment: try again."""


def check_reopening(session: Session, view: RunView, kind: str) -> None:
    """Raise ActionRefused if an open run has the singleton key of a run that has ended."""
    if view.singleton is None:
        return
    other = session.run_keys.with_singleton(view.tenant, view.workflow, view.singleton)
    if other is not None and run_places.is_of_places(view.singleton):
        problem = (
            f"run {other} has taken its place, and the workflow limits its open runs: wait for its "
            f"end or cancel it, then {kind} this run; or fork this run, a fork is not counted"
        )
        raise ActionRefused(view.id, kind, problem)
    if other is not None:
        problem = (
            f"run {other} is open, and has the same singleton key {view.singleton!r}: wait for its "
            f"end or cancel it, then {kind} this run; or fork this run, a fork has no singleton key"
        )
        raise ActionRefused(view.id, kind, problem)


def start_fact(run_id: str) -> str:
    return id_within(run_id, "start")


def open_run(session: Session, request: StartRequest) -> CommitEffects:
    """Return the open run of the key instead of a new one, or raise AlreadyRunning."""
    assert request.singleton is not None
    found = session.run_keys.with_singleton(request.tenant, request.workflow, request.singleton)
    if found == request.run_id:
        return CommitEffects(found)  # inserted by an unanswered statement
    if found is None:
        raise SingletonEnded
    if request.if_running == "reject":
        raise AlreadyRunning(request.workflow, request.singleton, found)
    return CommitEffects(found)


def stage_queued(request: StartRequest, rows: CommitPlan, origin: RunOrigin, now: int) -> None:
    """Add a run that waits for another one with the same key."""
    view = RunView(request.run_id, request.workflow, request.digest, priority=request.priority)
    view.state = RunState.QUEUED
    entry = {"happened": {"Queued": 1}, "state": view.state}
    rows.save_run(RunHeader(view, 0, 0), view, entry, now, tasks=0)
    queued = origin._replace(singleton_key=None, queued_key=request.queue[2])
    rows.insert_run(queued, request.labels)


class Singletons:
    """Begins queued runs of one database."""

    def __init__(self, database: Store) -> None:
        self._database = database

    def begin_next(self, tenant: str, workflow: str, key: str) -> str | None:
        """Give the key to the oldest queued run if no run has it; return the run.

        The caller evaluates it; if it dies before, recovery finds the fact.
        """
        if run_places.is_of_places(key):
            return self._begin_in_place(tenant, workflow)
        try:
            with self._database.write() as session:
                if session.run_keys.with_singleton(tenant, workflow, key) is not None:
                    return None
                run_id = session.run_keys.take_queued(tenant, workflow, key)
                if run_id is not None:
                    session.inbox.release_fact(start_fact(run_id))
                return run_id
        except KeyTaken:  # another process has just begun a run with this key
            log.debug("a run of %s with the singleton key %r has begun elsewhere", workflow, key)
            return None

    def _begin_in_place(self, tenant: str, workflow: str) -> str | None:
        """Give a place to the oldest queued run of a workflow that limits its open runs.

        Nothing is locked before a place is found: a process that finds none must not hide the run
        from one that has just freed a place.
        """
        for _ in range(_ATTEMPTS):
            try:
                with self._database.write() as session:
                    keys = session.run_keys
                    first = keys.first_queued_like(tenant, workflow, run_places.QUEUES)
                    if first is None:
                        return None
                    run_id, queue = first
                    taken = keys.singletons_like(tenant, workflow, run_places.PLACES)
                    place = run_places.free_place(queue, taken)
                    if place is None:
                        return None
                    if keys.give_singleton(run_id, place):
                        session.inbox.release_fact(start_fact(run_id))
                        return run_id
            except KeyTaken:  # another process has just taken the place: there may be others
                continue
        return None  # recovery looks again

    def free(self, first: str) -> list[tuple[str, str, str]]:
        """Return tenant, workflow and key of queued runs whose key no run has."""
        with self._database.read() as session:
            return session.run_keys.free_queues(first)

    def queued(self, tenant: str, workflow: str, key: str) -> list[str]:
        """Return the runs that have the key or wait for it, the open one first."""
        with self._database.read() as session:
            held = session.run_keys.with_singleton(tenant, workflow, key)
            return [*([held] if held else []), *session.run_keys.queued(tenant, workflow, key)]
