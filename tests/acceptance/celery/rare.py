"""A facet that most workers do not have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flowengine import event_facet, workflow


@event_facet
def weigh(grams: int) -> int:
    return grams + 1


@event_facet(task_list="rare")
def measure(metres: int) -> int:
    return metres


@event_facet(name="rare.describe")
def describe(name: str) -> Any:
    (Path(os.environ["TRACES"]) / f"begun-{name}-{os.getpid()}").touch()
    return {"y": [1, 2, 3]}


@workflow
def measuring(metres: int) -> int:
    return measure(metres)


@workflow
def weighing(grams: int) -> int:
    return weigh(grams)
