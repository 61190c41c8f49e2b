"""Facets with limits and rates for workers that are killed and lose messages.

A witness counts the tries that run at the same time: each takes one of as many file locks as its
key allows. The system frees the lock of a process that is killed, so the witness knows nothing of
the engine and forgets nobody.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowengine import Limit, Rate, event_facet, foreach, workflow

PER_CUSTOMER, SHARED, STARTS, PERIOD = 2, 4, 10, 1.0
SMALL, BIG = 6, 60  #: calls of a small customer and of the big one


@contextmanager
def _witnessed(key: str, count: int) -> Iterator[None]:
    traces = Path(os.environ["TRACES"])
    for place in range(count):
        lock = (traces / f"lock-{key}-{place}").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        (traces / f"place-{key}-{place}").touch()
        with lock:
            yield
        return
    (traces / f"violation-{key}-{os.getpid()}-{time.monotonic_ns()}").touch()
    yield


@event_facet(
    limit=(Limit("customer:{customer}", PER_CUSTOMER), Limit("shared", SHARED)), max_losses=1000
)
def call(customer: str, n: int) -> int:
    with _witnessed(f"customer.{customer}", PER_CUSTOMER), _witnessed("shared", SHARED):
        time.sleep(0.01 * (n % 3))
        return n


@event_facet(
    limit=(Limit("customer:{customer}", PER_CUSTOMER), Limit("shared", SHARED)), max_losses=1000
)
def meet(customer: str, n: int, meeting: str) -> bool:
    """Wait until as many tries are here as the limits allow; False after a minute."""
    traces = Path(os.environ["TRACES"])
    (traces / f"met-{meeting}-{customer}-{n}").touch()
    ends = time.monotonic() + 60
    with _witnessed(f"customer.{customer}", PER_CUSTOMER), _witnessed("shared", SHARED):
        while len(list(traces.glob(f"met-{meeting}-*"))) < SHARED:
            if time.monotonic() > ends:
                return False
            time.sleep(0.02)
    return True


@event_facet(rate=Rate("mail", STARTS, per=PERIOD), max_losses=1000)
def mail(n: int) -> int:
    return n


@workflow
def small(customer: str) -> list[int]:
    return foreach(list(range(SMALL)), lambda n: call(customer, n))


@workflow
def big(customer: str) -> list[int]:
    return foreach(list(range(BIG)), lambda n: call(customer, n))


@workflow
def all_together(customers: list[str], meeting: str) -> list[list[bool]]:
    return foreach(
        customers,
        lambda customer: foreach(list(range(PER_CUSTOMER)), lambda n: meet(customer, n, meeting)),
    )


@workflow
def mails(numbers: list[int]) -> list[int]:
    return foreach(numbers, lambda n: mail(n))
