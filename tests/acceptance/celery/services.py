"""Steps that call services which are down, or slow, as a test wants it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import uuid4

from flowengine import Breaker, Retry, event_facet, foreach, workflow

PAYMENTS = Breaker(
    "payments",
    failure_threshold=3,
    timeout_seconds=1.5,
    half_open_max_calls=2,
    recovery_timeout_seconds=300,
    probe_lease_seconds=120,
)
#: One probe at a time, whose lease ends soon when it reports nothing.
LETTERS = Breaker(
    "letters",
    failure_threshold=1,
    timeout_seconds=1,
    half_open_max_calls=1,
    recovery_timeout_seconds=300,
    probe_lease_seconds=4,
)
AGAIN = Retry(attempts=1000, first_wait=0.1, factor=1)


@event_facet(breaker=PAYMENTS, retry=AGAIN)
def pay(n: int) -> int:
    return _call("payments", n)


@event_facet(breaker=LETTERS, retry=AGAIN, max_losses=100)
def post(n: int) -> int:
    return _call("letters", n)


@workflow
def pay_all(numbers: list[int]) -> list[int]:
    return foreach(numbers, lambda n: pay(n))


@workflow
def post_all(numbers: list[int]) -> list[int]:
    return foreach(numbers, lambda n: post(n))


def _call(service: str, n: int) -> int:
    """Fail while the service is down; when it is up, wait until it may answer."""
    traces = Path(os.environ["TRACES"])
    if (traces / f"down-{service}").exists():
        (traces / f"failed-{service}-{uuid4().hex}").touch()
        raise ConnectionError(f"{service} is down")
    (traces / f"begun-{service}-{uuid4().hex}-{os.getpid()}").touch()
    while not (traces / f"go-{service}").exists():
        time.sleep(0.01)
    return n
