"""Calls in place for tests: every one that the code allows, however long the machine takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from flowengine.authoring import event_facet_named
from flowengine.engine import Engine
from flowengine.worker import in_place_tools
from flowengine.worker.batch import BatchSizing
from flowengine.worker.in_place_policy import InPlacePolicy
from flowengine.worker.in_place_tools import InPlaceTools

_ENDLESS = 3_600.0  # seconds


def policy_of(names: Sequence[str]) -> InPlacePolicy:
    """A policy of a process that knows these facets, and has measured that they are quick."""
    sizing = BatchSizing(math.inf)
    for name in names:
        for _ in range(2):
            sizing.count(name, 0.0)
    return InPlacePolicy(sizing, lambda: names, tuple, _ENDLESS, _ENDLESS)


def made_in_place(engine: Engine, policy: InPlacePolicy) -> InPlaceTools:
    return InPlaceTools(engine, policy, event_facet_named)


@contextmanager
def without_haste() -> Iterator[None]:
    """An answer waits for its tools, however slow the machine is."""
    with patch.object(in_place_tools, "_LONGEST_WAIT", _ENDLESS):
        yield
