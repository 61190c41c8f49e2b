"""Claimed tasks for unit tests: a table with a moved clock, and tasks with real ids."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from flowengine.engine.in_flight import InFlightMarkers
from flowengine.evaluator import TaskDefinition
from flowengine.worker.claimed_tasks import ClaimedTasks

NO_DIRECTORY = Path("/dev/null/none")  #: markers cannot be written there


class MovedClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def task(name: str = "t.quick", *, uuid_: str = "", **more: object) -> TaskDefinition:
    task_id = uuid_ or uuid.uuid4().hex
    return TaskDefinition(task_id, name, "", "run", "hash", "step", **more)  # type: ignore[arg-type]


def table(clock: Callable[[], float] | None = None, directory: Path = NO_DIRECTORY) -> ClaimedTasks:
    return ClaimedTasks(InFlightMarkers(directory, "b" * 32), clock or MovedClock())
