"""A facet that most workers do not have."""

from __future__ import annotations

from flowengine import event_facet, workflow


@event_facet
def weigh(grams: int) -> int:
    return grams + 1


@workflow
def weighing(grams: int) -> int:
    return weigh(grams)
