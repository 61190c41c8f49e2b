"""Results from a cache: a slow question is asked once an hour, however many runs need the answer.

    python examples/cached_rates.py

A step whose key has a recent result completes with it, without a try: no worker runs it. The step
tells which run had the result.
"""

from __future__ import annotations

import time
from datetime import timedelta

from flowengine import Cache, event_facet, workflow

asked: list[str] = []


@event_facet(cache=Cache("rates:{currency}", timedelta(hours=1)))
def exchange_rate(currency: str) -> float:
    asked.append(currency)
    time.sleep(0.05)  # a bank that is slow
    return {"EUR": 1.0, "USD": 1.25}[currency]


@event_facet
def charge(customer: str, amount: float) -> str:
    return f"{customer} pays {amount:.2f}"


@workflow
def order(customer: str, euros: float, currency: str) -> str:
    return charge(customer, euros * exchange_rate(currency))


if __name__ == "__main__":
    for customer in ("Ada", "Grace", "Edsger"):
        run = order.start(customer, 100, "USD")
        print(run.result(timeout=60))
    (step,) = (step for step in run.steps() if step.facet == exchange_rate.name)
    print(f"the last rate is from an earlier run: {step.cached_from is not None}")
    print(f"the bank was asked at most once: {len(asked) <= 1}, without a try: {step.tries == 0}")
