"""Retry what failed, run a step again, fork a run, end a step by hand.

python examples/retry.py
"""

from __future__ import annotations

from contextlib import suppress

from flowengine import event_facet, workflow
from flowengine.errors import ActionRefused, RunFailed

depot = {"open": False}


@event_facet
def charge(customer: str) -> int:
    print(f"charge {customer}")
    return 100


@event_facet
def ship(amount: int) -> str:
    if not depot["open"]:
        raise RuntimeError("the depot is closed")
    return f"shipped for {amount}"


@event_facet
def mail(text: str) -> str:
    return f"mail: {text}"


@workflow
def order(customer: str) -> str:
    return mail(ship(charge(customer)))


if __name__ == "__main__":
    run = order.start("Ada")
    try:
        run.result(timeout=60)
    except RunFailed as failed:
        print(failed.message)
    fork = run.fork()  # runs what failed, and fails too
    with suppress(RunFailed):
        fork.result(timeout=60)
    fork.complete("order.ship", "picked up by the customer", actor="eva")
    print(fork.result(timeout=60))
    depot["open"] = True
    run.retry(reason="the depot is open", actor="eva")  # does not charge again
    print(run.result(timeout=60))
    try:
        run.retry()
    except ActionRefused as refused:
        print(refused.reason.partition(",")[0])
    run.retry(from_step="order.mail")
    print(run.result(timeout=60))
