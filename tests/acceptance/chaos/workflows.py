"""The workflows of the chaos run, imported by every worker, also those of the older version.

Each is a function of its input alone, whatever happens to workers: `model` says which. No facet
limits its losses: how often processes are killed is the schedule's business.
"""

from __future__ import annotations

import time

from flowengine import Retry, attempt, current_step, event_facet, foreach, workflow

LOSSES = 1_000_000
TIMEOUT = 30.0  #: seconds; longer than any outage of the schedule
WIDTH = 60  #: items of a fan-out; above 50 its tasks are sent as a chord


class Refused(Exception):
    pass


class OutOfStock(Exception):
    pass


@event_facet(max_losses=LOSSES)
def add(a: int, b: int) -> int:
    time.sleep(0.005)
    return a + b


@event_facet(max_losses=LOSSES)
def double(n: int) -> int:
    return n * 2


@event_facet(task_list="wide", max_losses=LOSSES)
def square(n: int) -> int:
    time.sleep(0.002 * (n % 3))
    return n * n


@event_facet(max_losses=LOSSES)
def total(numbers: list[int]) -> int:
    return sum(numbers)


@event_facet(max_losses=LOSSES, retry=Retry(attempts=4, first_wait=0.1, factor=1))
def third_time(n: int) -> int:
    """Fail twice, then succeed. A lost try is not counted as one."""
    if current_step().try_number < 3:
        raise ConnectionError("not yet")
    return n + 100


@event_facet(max_losses=LOSSES, timeout=TIMEOUT)
def beating(n: int) -> int:
    """Work for a second or two and send heartbeats meanwhile."""
    step = current_step()
    for _ in range(10 + n % 10):
        time.sleep(0.1)
        step.heartbeat()
    return n - 1


@event_facet(max_losses=LOSSES)
def reserve(n: int) -> int:
    if n % 3 == 0:
        raise OutOfStock(f"{n} is out of stock")
    if n % 7 == 0:
        raise Refused(f"{n} is refused")
    return n


@event_facet(max_losses=LOSSES)
def release(n: int) -> None: ...


@workflow
def chain(n: int) -> int:
    for _ in range(6):
        n = double(add(n, 1))
    return n


@workflow
def fan_out(n: int) -> int:
    return total(foreach(list(range(WIDTH)), lambda i: square(i)))


@workflow
def retried(n: int) -> int:
    return add(third_time(n), 1)


@workflow
def heartbeats(n: int) -> int:
    return double(beating(n))


@workflow
def reservation(n: int) -> int:
    """Recovers from one error; another fails the run."""
    return attempt(
        lambda: reserve(n),
        catch={OutOfStock: lambda error: double(n)},
        always=lambda: release(n),
    )


@workflow
def squared(n: int) -> int:
    return square(n)


@event_facet(max_losses=LOSSES)
def choose(n: int) -> int:
    """Continue with a run of its own."""
    return squared.call(n)


@workflow
def family(n: int) -> int:
    """Waits for four child runs, and for one that a facet chose."""
    others = total(foreach([1, 2, 3, 4], lambda i: squared.start(i).result()))
    return add(choose(n), others)


@workflow
def family_with_a_failure(n: int) -> int:
    """The failure of a child run fails its parent."""
    return add(reservation.start(n).result(), 1)
