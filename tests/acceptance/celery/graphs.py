"""Workflows for worker processes that are killed, cut off or sent false messages."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path

from celery.utils.log import get_task_logger

from flowengine import Retry, current_step, event_facet, foreach, workflow

MANY = 20  #: items of the fan-out in `mixed`
TASKS = 3 + 4 + MANY + 1  #: tasks of one `mixed` in which nothing goes wrong


# No limit of losses: the tests decide how often workers are killed.
@event_facet(max_losses=1000)
def add(a: int, b: int) -> int:
    _trace("add")
    time.sleep(0.005)
    return a + b


@event_facet(max_losses=1000)
def multiply(a: int, b: int) -> int:
    _trace("multiply")
    time.sleep(0.01)
    return a * b


@event_facet(task_list="wide", max_losses=1000)
def square(n: int) -> int:
    _trace("square")
    time.sleep(0.002 * (n % 5))
    return n * n


@event_facet(max_losses=1000)
def add_up(first: int, numbers: list[int]) -> int:
    _trace("add_up")
    return first + sum(numbers)


@workflow
def mixed(n: int) -> int:
    """A chain, a diamond, and a fan-out with its join."""
    chain = add(multiply(add(n, 1), 2), 3)
    above = add.named("above")(chain, 10)
    left = multiply.named("left")(above, 2)
    right = multiply.named("right")(above, 3)
    below = add.named("below")(left, right)
    squares = foreach(list(range(MANY)), lambda i: square(i))
    return add_up(below, squares)


def expected(n: int) -> int:
    """The result of `mixed`."""
    above = (n + 1) * 2 + 3 + 10
    return above * 2 + above * 3 + sum(i * i for i in range(MANY))


@workflow
def wide(numbers: list[int]) -> int:
    return add_up(0, foreach(numbers, lambda i: square(i)))


@workflow
def squared(n: int) -> int:
    return square(n)


@event_facet(max_losses=1000)
def tell(n: int) -> int:
    print("printed", n)
    get_task_logger("shop.tasks").warning("logged %d", n)
    return os.getpid()


@workflow
def told(n: int) -> int:
    return tell(n)


@event_facet(max_losses=1000)
def choose(n: int) -> int:
    """Continue with a run of its own."""
    _trace("choose")
    return squared.call(n)


@workflow
def family(n: int) -> int:
    """A run that waits for four child runs, and for one that a facet has chosen."""
    return add_up(choose(n), foreach([1, 2, 3, 4], lambda i: squared.start(i).result()))


@event_facet(max_losses=1000)
def hold(name: str) -> int:
    """Leave a file when it starts, then wait until another file allows it to end."""
    directory = Path(os.environ["TRACES"])
    (directory / f"begun-{name}-{os.getpid()}").touch()
    while not (directory / f"go-{name}").exists():
        time.sleep(0.01)
    return os.getpid()


@workflow
def held(name: str) -> int:
    return hold(name)


@event_facet(retry=Retry(attempts=2, first_wait=3600))
def fail_once(n: int) -> int:
    raise ConnectionError(f"{n} again in an hour")


@workflow
def unfinished(n: int) -> int:
    """A run that does not end during a test."""
    return fail_once(n)


@event_facet
def wait(n: int) -> int:
    return unfinished.start(n).result()


@workflow
def impatient(n: int) -> int:
    return wait(n)


@workflow
def held_then_added(name: str) -> int:
    return add(hold(name), 0)


@event_facet(on_loss="fail")
def hold_once(name: str) -> int:
    return hold(name)


@workflow
def held_once(name: str) -> int:
    return hold_once(name)


@event_facet(timeout=1)
def hang(name: str) -> int:
    return hold(name)


@workflow
def hanging(name: str) -> int:
    return hang(name)


@event_facet(timeout=2)
def hold_with_heartbeats(name: str) -> int:
    directory = Path(os.environ["TRACES"])
    (directory / f"begun-{name}-{os.getpid()}").touch()
    for tenth in itertools.count():
        if (directory / f"go-{name}").exists():
            return os.getpid()
        if tenth % 6 == 0:
            current_step().heartbeat()
        time.sleep(0.1)
    raise AssertionError("counting never ends")


@workflow
def held_with_heartbeats(name: str) -> int:
    return hold_with_heartbeats(name)


@event_facet(max_losses=1000)
def die_first(times: int) -> int:
    """Kill the process in the first tries."""
    me = current_step().idempotency_key
    deaths = len(list(Path(os.environ["TRACES"]).glob(f"death-{me}-*")))
    if deaths < times:
        (Path(os.environ["TRACES"]) / f"death-{me}-{deaths}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return deaths


@workflow
def deadly(times: int) -> int:
    return add(die_first(times), 0)


# --- quick steps, which are claimed in batches ---


@event_facet(max_losses=3)
def touch(n: int, holds: int = -1, kills: int = -1) -> int:
    """A quick step, but for one number that is held, or kills its process."""
    if n == kills:
        os.kill(os.getpid(), signal.SIGKILL)
    return hold(f"touch-{n}") * 0 + n if n == holds else n


@workflow
def touched(holds: int, kills: int) -> list[int]:
    return foreach(list(range(40)), lambda n: touch(n, holds, kills))


@workflow
def short_chain(n: int) -> int:
    return touch(touch(touch(n)))


def _trace(name: str) -> None:
    """Leave a trace of each execution: a second one after a kill is allowed, and counted."""
    with (Path(os.environ["TRACES"]) / f"executions-{os.getpid()}").open("a") as file:
        file.write(f"{name}\n")
