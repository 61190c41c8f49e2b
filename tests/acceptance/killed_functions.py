"""A durable function with everything it may do, for tests that kill the process that runs it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from flowengine import (
    Retry,
    current_step,
    event_facet,
    gather,
    sleep,
    step,
    uuid,
    wait_for,
    workflow,
)
from flowengine.store.postgres.database import PostgresDatabase
from flowengine.store.sqlite.database import SqliteDatabase
from tests.acceptance.thirty_steps import kill_at

LOOP, WIDTH = 6, 9
NAMES = ["ada", "bob", "cleo", "dora"]
EXPECTED = [
    sum(range(LOOP)),
    [2 * n for n in range(WIDTH)],
    "first",
    "timed out",
    "third time",
    "refused: no",
    LOOP + 1,
]


class Refused(Exception):
    """An error of a facet that the function knows."""


@event_facet
def add(total: int, n: int) -> int:
    _note()
    return total + n


@event_facet(effects=False)
def double(n: int) -> int:
    _note()
    return 2 * n


@event_facet
def first(key: str) -> str:
    _note()
    return "first"


@event_facet(retry=Retry(attempts=3, first_wait=0.01))
def third_time() -> str:
    _note()
    if current_step().try_number < 3:
        raise ConnectionError("not yet")
    return "third time"


@event_facet
def refuse() -> str:
    _note()
    raise Refused("no")


def more(n: int) -> int:
    _note()
    return n + 1


@workflow
async def journey(name: str) -> list[object]:
    total = 0
    for n in range(LOOP):
        total = await add(total, n)
    doubled = await gather(*(double(n) for n in range(WIDTH)))
    racers = [asyncio.create_task(one) for one in (first(str(uuid())), sleep(86_400))]
    done, others = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    winner = next(iter(done)).result()
    try:
        async with asyncio.timeout(0.05):
            answer = await wait_for(f"never {name}", str)
    except TimeoutError:
        answer = "timed out"
    patience = await third_time()
    try:
        refusal = await refuse()
    except Refused as problem:
        refusal = f"refused: {problem}"
    return [total, doubled, winner, answer, patience, refusal, await step(more, LOOP)]


@event_facet
def count(name: str, n: int) -> int:
    """Kill this process in the third call of one function, once."""
    killed = Path(f"{os.environ['EXECUTIONS']}.killed")
    if (name, n) == (NAMES[1], 2) and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return n + 1


@workflow
async def counts(name: str) -> int:
    n = 0
    for _ in range(LOOP):
        n = await count(name, n)
    return n


@event_facet
def wait_while(place: str) -> bool:
    while Path(place).exists():
        time.sleep(0.01)
    return True


@workflow
def hold(place: str) -> bool:
    return wait_while(place)


def _note() -> None:
    """Record each execution of a call: a second one after a kill is allowed, and counted."""
    step = current_step()
    with Path(os.environ["EXECUTIONS"]).open("a") as file:
        file.write(f"{step.run_id} {step.path} {step.try_number}\n")


def executions() -> Counter[str]:
    found = Path(os.environ["EXECUTIONS"])
    return Counter(found.read_text().split("\n")[:-1]) if found.exists() else Counter()


def run_and_die(url: str, commits: int, moment: str) -> None:
    """Run the function; kill this process at its n-th commit. 0: let it live."""
    kind, database_url = _prepare(url)
    if commits:
        database = PostgresDatabase if database_url.startswith("postgresql") else SqliteDatabase
        kill_at(database, commits, moment)
    names = NAMES if kind == "interleaved" else NAMES[:1]
    runs = [journey.options(key=f"of {name}").start(name) for name in names]
    print([run.result(timeout=60) for run in runs])
    sys.stdout.flush()


def run_beside_a_killer(url: str, commits: int, moment: str) -> None:
    """Run functions that are claimed together; one of them kills this process once."""
    _prepare(url)
    for name in ("first", "second"):  # the process learns that they are quick
        assert counts.start(name).result(timeout=60) == LOOP
    held = Path(f"{os.environ['EXECUTIONS']}.held")
    held.touch()
    hold.start(str(held))
    runs = [counts.options(key=name).start(name) for name in NAMES]
    held.unlink()
    assert [run.result(timeout=60) for run in runs] == [LOOP] * len(NAMES)


def _prepare(url: str) -> tuple[str, str]:
    """Prepare this process; return how calls are made, and the URL of the database."""
    kind, _, rest = url.partition("|")  # tasks, in-place or interleaved
    database_url, _, os.environ["EXECUTIONS"] = rest.partition("|")
    os.environ["FLOWENGINE_DATABASE_URL"] = database_url
    # In one thread, so that the functions are claimed together.
    os.environ["FLOWENGINE_CONCURRENCY"] = "1" if kind == "interleaved" else "2"
    os.environ["FLOWENGINE_WATCHDOG_INTERVAL"] = "0.05"
    os.environ["FLOWENGINE_QUICK_SECONDS"] = "0.000000001" if kind == "tasks" else "1"
    os.environ["FLOWENGINE_BATCH_MAX_WAIT"] = "1"
    return kind, database_url
