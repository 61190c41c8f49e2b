"""Reserve a trip as a saga, and cancel it: whatever was reserved is released.

    python examples/saga.py

Each reservation has an `always` block, which runs when the rest of the trip has succeeded, failed
or was cancelled. It releases the reservation unless the trip was paid.
"""

import time

from flowengine import ActionRefused, RunCancelled, attempt, event_facet, facet, wait_for, workflow

PAID: set[str] = set()  # stands for the reservation service


@event_facet
def reserve(what: str) -> str:
    return f"{what} reserved"


@event_facet
def release(reservation: str) -> None:
    if reservation not in PAID:
        print(f"released: {reservation}")


@event_facet
def pay(room: str, seat: str, card: str) -> str:
    PAID.update((room, seat))
    return f"{room} and {seat}, paid with {card}"


@facet
def pay_when_asked(room: str, seat: str) -> str:
    return pay(room, seat, wait_for("card", str))


@facet
def with_seat(room: str, flight: str) -> str:
    seat = reserve(flight)
    return attempt(lambda: pay_when_asked(room, seat), always=lambda: release(seat))


@workflow
def trip(hotel: str, flight: str) -> str:
    room = reserve(hotel)
    return attempt(lambda: with_seat(room, flight), always=lambda: release(room))


if __name__ == "__main__":
    paid = trip.start("room 7", "seat 12A")
    paid.send("card", "visa", actor="ada")
    print(paid.result(timeout=60))
    try:
        paid.cancel(reason="too late")
    except ActionRefused as refused:
        print(refused.reason)

    dropped = trip.start("room 8", "seat 12B")
    while not any(step.path.endswith("wait_for") for step in dropped.steps()):
        time.sleep(0.01)
    dropped.hold(reason="the price is being checked", actor="otto")
    print(f"the trip is {dropped.state}")
    dropped.release(actor="otto")
    dropped.cancel(reason="the customer called", actor="eva")
    dropped.cancel(reason="the customer called", actor="eva")  # once more: no error
    try:
        dropped.result(timeout=60)
    except RunCancelled as cancelled:
        print(cancelled.message)
