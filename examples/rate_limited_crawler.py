"""A polite crawler: it limits pages of a host at a time, and requests in a period.

    python examples/rate_limited_crawler.py

The limits count the tries of all runs and all processes. A page that has to wait is a row in the
database; no worker waits with it. The host that answers slowly does not hold up the others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

from flowengine import Limit, Rate, Retry, RetryAfter, current_step, event_facet, foreach, workflow

PER_HOST, REQUESTS, PERIOD = 2, 12, 1.0

lock = threading.Lock()
open_now: Counter[str] = Counter()
most: Counter[str] = Counter()


@event_facet(
    limit=Limit("host:{host}", PER_HOST),
    rate=Rate("crawler", REQUESTS, per=PERIOD),
    retry=Retry(attempts=3, jitter=0.5, never_on=(ValueError,)),
)
def fetch(host: str, page: int) -> int:
    with lock:
        open_now[host] += 1
        most[host] = max(most[host], open_now[host])
    try:
        time.sleep(0.01)
        if page == 2 and current_step().try_number == 1:
            raise RetryAfter(0.1, "the host asked for a pause")  # as a 429 with Retry-After
        return page * 10
    finally:
        with lock:
            open_now[host] -= 1


@workflow
def crawl(hosts: list[str], pages: list[int]) -> list[list[int]]:
    """Return the number of words of each page, host by host."""
    return foreach(hosts, lambda host: foreach(pages, lambda page: fetch(host, page)))


if __name__ == "__main__":
    hosts = ["a.example", "b.example", "c.example"]
    run = crawl.start(hosts, [1, 2, 3, 4])
    words = run.result(timeout=60)
    print(f"{sum(map(sum, words))} words on {len(hosts)} hosts")
    print(f"never more than {PER_HOST} at a time: {max(most.values()) <= PER_HOST}")
    starts = sorted(
        one.started for step in run.steps() for one in step.all_tries if one.started is not None
    )
    window = max(
        sum(first <= other < first + PERIOD * 1000 for other in starts) for first in starts
    )
    print(f"never more than {REQUESTS} in a second: {window <= REQUESTS}, with {len(starts)} tries")
