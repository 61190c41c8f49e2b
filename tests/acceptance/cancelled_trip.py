"""A run that is cancelled, with always blocks and a child run, for tests that kill its process."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from typing import Any, cast

from flowengine import attempt, current_step, event_facet, facet, foreach, sleep, workflow
from flowengine.engine import Engine, Run
from flowengine.errors import RunCancelled
from flowengine.evaluator.states import StepState
from flowengine.store.postgres.database import PostgresDatabase
from flowengine.store.sqlite.database import SqliteDatabase
from tests.acceptance.thirty_steps import kill_at

LEGS = 3
_SECONDS = 60


@event_facet
def book(leg: int) -> int:
    return leg


@event_facet
def undo(leg: int) -> str:
    return current_step().run_id


@facet
def one_leg(leg: int) -> str:
    booked = book(leg)
    return attempt(lambda: sleep(86_400.0), always=lambda: undo(booked))


@workflow
def other_trip(leg: int) -> str:
    return one_leg(leg)


@workflow
def trip(legs: list[int]) -> list[str]:
    other_trip.start(99)
    return foreach(legs, lambda leg: one_leg(leg))


def is_asleep(engine: Engine) -> bool:
    """Whether all legs sleep and are booked, that of the child run too."""
    steps = [step for run in engine.list() for step in engine.steps(run.id)]
    states = Counter((step.path.rpartition(".")[2], step.state) for step in steps)
    return (
        states["sleep", StepState.EVENT_TRANSMIT] == LEGS + 1
        and states["book", StepState.COMPLETE] == LEGS + 1
    )


def has_ended(engine: Engine) -> bool:
    """Whether all runs have ended, the child run too, and nothing is left to be decided for them.

    The cancellation of children is decided after the commit that cancels their parent: a process
    that ends in between leaves it to the next one.
    """
    if not all(info.is_final for info in engine.list()):
        return False
    with engine.database.read() as session:
        left = session.rows("SELECT id FROM flowengine_fact WHERE NOT taken_in")
    return not left


def run_and_die(url: str, commits: int, moment: str) -> None:
    """Run the workflow until all of it sleeps, and cancel it; die at the n-th commit. 0: live."""
    os.environ["FLOWENGINE_DATABASE_URL"] = url
    os.environ["FLOWENGINE_CONCURRENCY"] = "2"
    os.environ["FLOWENGINE_WATCHDOG_INTERVAL"] = "0.05"
    if commits:
        kill_at(SqliteDatabase if url.startswith("sqlite") else PostgresDatabase, commits, moment)
    run = cast("Run[Any]", trip.options(key="the one").start(list(range(LEGS))))
    ends = time.monotonic() + _SECONDS
    engine = run._engine
    while not has_ended(engine):
        assert time.monotonic() < ends, f"run {run.id} is {run.state}"
        if is_asleep(engine):
            run.cancel(reason="killed", actor="eva", key="the cancellation")
        time.sleep(0.01)
    try:
        run.result(timeout=0)
    except RunCancelled as cancelled:
        print(cancelled)
    sys.stdout.flush()
