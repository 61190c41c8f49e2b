"""A saga as a durable function: each booking has its undoing, and failures undo what was booked.

    python examples/durable_saga.py

`try` and `except` are those of Python. The list of undoings is a local variable: after a kill
another process runs the function again, gets the recorded results and has the same list. The
saga of `saga.py` is a graph: there the undoings are steps of `attempt`.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from flowengine import Retry, StepFailed, event_facet, uuid, workflow


@event_facet
def book_hotel(city: str, key: str) -> str:
    return f"room in {city}"


@event_facet(retry=Retry(attempts=2, first_wait=0.1))
def book_flight(city: str, key: str) -> str:
    if city == "Atlantis":
        raise ConnectionError("no airport answers")
    return f"seat to {city}"


@event_facet
def cancel(booking: str) -> str:
    print(f"cancelled: {booking}")
    return booking


Undo = Callable[[], Coroutine[Any, Any, str]]


@workflow
async def trip(city: str) -> str:
    key = str(uuid())  # the same in every replay: bookings are asked for once
    undo: list[Undo] = []
    try:
        room = await book_hotel.acall(city, key)
        undo.append(lambda: cancel.acall(room))
        seat = await book_flight.acall(city, key)
        undo.append(lambda: cancel.acall(seat))
    except StepFailed as problem:
        for back in reversed(undo):
            await back()
        return f"no trip to {city}: {problem}"
    return f"{room}, {seat}"


if __name__ == "__main__":
    print(trip.start("Oslo").result(timeout=60))
    print(trip.start("Atlantis").result(timeout=60))
