"""The run cache: runs that this process advanced last.

A worker that continues with a run has just written its rows, and need not read them again. If
another process has advanced the run since, its revision differs and the optimistic commit is
refused. So the cache may be stale, and every entry may be evicted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from flowengine.engine.staging import CachedRun
from flowengine.evaluator.states import RunState

_MAX_RUNS = 256
_MAX_ROWS = 1_000  # of one run


class RunCache:
    """A least-recently-used cache. Shared by all threads of a process."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, CachedRun] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, run_id: str) -> CachedRun | None:
        """Remove a run and return it: evaluation changes it, so one thread owns it at a time."""
        with self._lock:
            return self._runs.pop(run_id, None)

    def keep(self, run: CachedRun) -> None:
        """Keep a run as it was just committed."""
        view = run.head.view
        if view.state in RunState.FINAL:
            return
        rows = run.snapshot.steps
        if len(rows) > _MAX_ROWS:
            # Evict ended steps first: they are rarely read again, and can be reloaded.
            for key in [key for key, row in rows.items() if row is None or row.is_final]:
                del rows[key]
            if len(rows) > _MAX_ROWS:
                return
        run.snapshot.payloads.clear()
        with self._lock:
            self._runs[view.id] = run
            while len(self._runs) > _MAX_RUNS:
                self._runs.popitem(last=False)
