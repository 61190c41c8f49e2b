"""A facet that most workers do not have."""

from __future__ import annotations

from flowengine import event_facet, workflow


@event_facet
def weigh(grams: int) -> int:
    return grams + 1


@event_facet(task_list="rare")
def measure(metres: int) -> int:
    return metres


@workflow
def measuring(metres: int) -> int:
    return measure(metres)


@workflow
def weighing(grams: int) -> int:
    return weigh(grams)
