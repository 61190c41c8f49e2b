"""A folder of documents: published by the process that works, started by name.

    python examples/documents/nightly.py

The folder has a workflow with commands, calls and a child, and one in the form of cdktr. Both have
schedules; here they are started by hand. Change a file while this runs in a worker, and the next
start has the new version.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from flowengine import default_engine, event_facet

FOLDER = Path(__file__).parent / "workflows"


@event_facet(name="shop.load")
def load(text: str, lines: int) -> int:
    assert len(text.splitlines()) == lines
    return lines


@event_facet(name="shop.send")
def send(text: str) -> str:
    return f"mail: {text}"


if __name__ == "__main__":
    os.environ["FLOWENGINE_WORKFLOWS"] = str(FOLDER)
    os.environ["FLOWENGINE_COMMANDS"] = "on"
    engine = default_engine()
    while len(engine.catalogue.list()) < 3 or len(engine.schedules.list()) < 2:
        time.sleep(0.05)  # it publishes the folder in a thread of its own
    for workflow in engine.catalogue.list():
        print(workflow.name, list(workflow.inputs["properties"]))
    days = ("2026-11-15", "2026-11-16")
    runs = [engine.start("shop.daily", {"day": day}) for day in days]
    for run in runs:
        print(run.result(timeout=60))
    begun = min(step.created for step in runs[1].steps())
    print("one after the other:", (runs[0].info().finished or 0) <= begun)
    copied = engine.start("copy")
    copied.result(timeout=60)
    steps = [step for step in copied.steps() if step.facet == "command.run"]
    print(*(step.returns["result"]["stdout"].strip() for step in steps))
    print("schedules:", *(schedule.name for schedule in engine.schedules.list()))
