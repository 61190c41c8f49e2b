"""The facets that two tenants share, and the workflow of the ordinary one."""

from __future__ import annotations

import time

from flowengine import event_facet, foreach, when, workflow

SECONDS = 0.05  #: that an ordinary step waits for a service


@event_facet(name="tenants.fetch")
def fetch(n: int) -> int:
    time.sleep(SECONDS)
    return n


@event_facet(name="tenants.total")
def total(ns: list[int]) -> int:
    time.sleep(SECONDS)
    return sum(ns)


@event_facet(name="tenants.echo")
def echo(x: object) -> object:
    return x


@event_facet(name="tenants.count")
def count(n: int) -> int:
    return n + 1


@workflow(name="tenants.order")
def order(n: int) -> int:
    """Three calls one after the other, eight side by side, and two with their results."""
    first = fetch(fetch(fetch(n)))
    parts = foreach([1, 2, 3, 4, 5, 6, 7, 8], lambda part: fetch(part + first))
    return fetch(total(parts))


def expected(n: int) -> int:
    return 36 + 8 * n


@workflow(name="tenants.twice")
def twice(n: int) -> int:
    """Starts itself twice, without end, and waits for neither."""
    return when(n >= 0, lambda: join(twice.start(n).id, twice.start(n).id), otherwise=0)


@event_facet(name="tenants.join")
def join(first: str, second: str) -> int:
    return 1
