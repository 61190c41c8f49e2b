"""A project of Celery whose canvases are started as runs: its tasks know nothing of flowengine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from flowengine import event_facet
from flowengine.assembly import FlowEngine

app = Celery(
    "canvases",
    broker=os.environ.get("FLOWENGINE_BROKER_URL"),
    backend=os.environ.get("FLOWENGINE_RESULT_BACKEND"),
    set_as_current=False,
)


@app.task
def held_square(name: str, n: int) -> int:
    """Leave a file when it starts, then wait until another file allows it to end."""
    directory = Path(os.environ["TRACES"])
    (directory / f"begun-{name}-{os.getpid()}").touch()
    while not (directory / f"go-{name}").exists():
        time.sleep(0.01)
    return n * n


@app.task
def add_up(numbers: list[int], name: str) -> int:
    path = Path(os.environ["TRACES"]) / f"summed-{name}"
    with path.open("a") as file:
        file.write(f"{numbers}\n")
    return sum(numbers)


@app.task
def double(n: int) -> int:
    return 2 * n


@app.task
def refuse(n: int) -> int:
    raise ValueError(f"not {n}")


@app.task(bind=True)
def report(self: Any, request: Any, exc: Exception, traceback: str, name: str) -> None:
    told = f"{self.name} {request.task} {exc!r} {traceback}"
    (Path(os.environ["TRACES"]) / f"reported-{name}").write_text(told)


# No limit of losses: the tests decide how often workers are killed.
for each in (held_square, add_up, double, refuse, report):
    event_facet(max_losses=1000)(each)

if "TRACES" in os.environ:  # of a worker; a test installs its own
    FlowEngine(app)
