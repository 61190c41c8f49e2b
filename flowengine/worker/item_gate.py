"""A gate in front of the claimed tasks of a worker: a runner service holds a lock for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flowengine.worker.claimed_tasks import ClaimedTask


class ItemGate(Protocol):
    seconds: float  #: until a task that is not let through is due again

    def enter(self, entries: Sequence[ClaimedTask]) -> Sequence[ClaimedTask]:
        """Return those of these tasks that may start; raises errors of the database."""

    def leave(self, entries: Sequence[ClaimedTask]) -> None:
        """Called before tasks are reported, released or parked; raises nothing."""
