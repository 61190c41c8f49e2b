"""What this process knows of runs it has advanced.

A worker that goes on with a run has just written its rows. They need not be read again: if
somebody else has advanced the run meanwhile its revision is another, and the commit that was
decided from old knowledge is refused. So this is only ever a guess, and may be forgotten.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from flowengine.engine.staging import CachedRun
from flowengine.evaluator.states import RunState

_MOST_RUNS = 256
_MOST_ROWS = 1_000  # of one run


class RunCache:
    """The runs that were advanced last."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, CachedRun] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, run_id: str) -> CachedRun | None:
        """Take what is known of a run out of here; evaluating changes it."""
        with self._lock:
            return self._known.pop(run_id, None)

    def keep(self, known: CachedRun) -> None:
        """Remember a run as it was just committed."""
        view = known.head.view
        if view.state in RunState.FINAL:
            return
        rows = known.snapshot.steps
        if len(rows) > _MOST_ROWS:
            # What has ended is hardly read again, and can be.
            ended = [key for key, row in rows.items() if row is None or row.is_final]
            for key in ended:
                del rows[key]
            if len(rows) > _MOST_ROWS:
                return
        known.snapshot.payloads.clear()
        with self._lock:
            self._known[view.id] = known
            while len(self._known) > _MOST_RUNS:
                self._known.popitem(last=False)
