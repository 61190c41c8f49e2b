"""Workflows of the newer version: workers of the older one have no code for their facets."""

from __future__ import annotations

from flowengine import event_facet, foreach, workflow
from tests.acceptance.chaos.workflows import LOSSES, add, total


@event_facet(max_losses=LOSSES)
def halve(n: int) -> int:
    return n // 2


@workflow
def novelty(n: int) -> int:
    return add(halve(n), total(foreach([10, 20, 30], lambda i: halve(i))))
