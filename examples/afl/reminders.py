"""Run AFL text: the workflow is in reminders.afl, the code of its event facets here.

    python examples/afl/reminders.py
    flowengine run examples/afl/reminders.afl --module examples/afl/reminders.py -i day=monday

A function implements the event facet of its name. Its value is the facet's only return, or a map
of all returns. The decorator has retries, timeouts and task lists.
"""

from dataclasses import dataclass
from pathlib import Path

from flowengine import Retry, current_step, default_engine, event_facet, load_program

LOANS: dict[str, list[dict[str, str | int]]] = {
    "monday": [
        {"reader": "Ada", "title": "Moby-Dick", "days": 3},
        {"reader": "Ben", "title": "Emma", "days": 11},
    ]
}


@dataclass
class Letter:
    cents: int
    receipt: str


@event_facet(name="library.Overdue")
def overdue(day: str) -> list[dict[str, str | int]]:
    return LOANS.get(day, [])


@event_facet(name="library.Post", retry=Retry(attempts=3, first_wait=0.1))
def post(reader: str, text: str) -> Letter:
    if reader == "Ben" and current_step().try_number == 1:
        raise ConnectionError("the post office did not answer")
    print(f"  to {reader}: {text}")
    return Letter(cents=85, receipt=f"letter of {len(text)} letters")


if __name__ == "__main__":
    program = load_program(Path(__file__).with_name("reminders.afl"))
    run = default_engine().start(program, "library.Reminders", {"day": "monday"})
    print(run.outputs(timeout=60))
