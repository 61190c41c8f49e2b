"""Three runs under control, for tests that kill the process that drives them at any commit.

One sleeps, waits for an answer and has a limited step; one is cancelled; one fails and is retried.
The driver can be started again after any kill: each of its calls is idempotent, or refused if it
was made before.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flowengine import (
    AnswerRefused,
    Limit,
    RunCancelled,
    RunFailed,
    attempt,
    default_engine,
    event_facet,
    foreach,
    sleep,
    wait_for,
    workflow,
)
from flowengine.errors import ActionRefused
from flowengine.store.postgres.database import PostgresDatabase
from flowengine.store.sqlite.database import SqliteDatabase
from tests.acceptance.thirty_steps import kill_at

WAITED = "controlled.waited"
CANCELLED = "controlled.cancelled"
RETRIED = "controlled.retried"


@event_facet(limit=Limit("customer:{customer}", 1))
def charge(customer: str, cents: int) -> int:
    return cents


@event_facet
def release(seat: int) -> int:
    return seat


@event_facet
def risky(number: int) -> int:
    if number == 2 and not Path(os.environ["REPAIRED"]).exists():
        raise ConnectionError("not yet")
    return number


@event_facet
def add_up(numbers: list[int]) -> int:
    return sum(numbers)


@workflow(name=WAITED)
def waited(customer: str) -> int:
    answer = wait_for("cents", int)
    rested = sleep(0.05).after(answer)
    return add_up([charge.after(rested)(customer, answer), charge(customer, 1)])


@workflow(name=CANCELLED)
def cancelled(seat: int) -> int:
    return attempt(lambda: wait_for("never", int), always=lambda: release(seat))


@workflow(name=RETRIED)
def retried() -> int:
    return add_up(foreach([1, 2, 3], lambda number: risky(number)))


def drive(url: str, repaired: str, commits: int, moment: str) -> None:
    """Drive the runs to their ends; kill this process at its n-th commit. 0: let it live."""
    os.environ["FLOWENGINE_DATABASE_URL"] = url
    os.environ["FLOWENGINE_CONCURRENCY"] = "2"
    os.environ["FLOWENGINE_WATCHDOG_INTERVAL"] = "0.05"
    os.environ["REPAIRED"] = repaired
    if commits:
        kind = PostgresDatabase if url.startswith("postgresql") else SqliteDatabase
        kill_at(kind, commits, moment)
    first = waited.options(key="first").start("ada")
    second = cancelled.options(key="second").start(7)
    third = retried.options(key="third").start()
    with suppress(AnswerRefused):  # given before the kill
        first.send("cents", 40, actor="eva")
    with suppress(ActionRefused):  # it has ended: cancelled before the kill
        second.cancel(reason="duplicate", actor="eva")
    try:
        third.result(timeout=60)
    except RunFailed:
        Path(repaired).touch()
        third.retry(reason="repaired", actor="eva")
    assert third.result(timeout=60) == 6
    assert first.result(timeout=60) == 41
    try:
        second.result(timeout=60)
    except RunCancelled:
        pass
    else:
        raise AssertionError("the cancelled run has a result")
    default_engine().close()
