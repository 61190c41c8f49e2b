"""Failed evaluations: a run that cannot be evaluated gets an alarm, and is evaluated less often.

An error of the evaluator, of the engine or of the memory is not an error of a step: nothing is
written, the reports and facts stay where they are, and recovery evaluates the run again. Without
an alarm such a run would stay RUNNING and nobody would learn why.

The count is of this process alone. Repaired code comes with a new process, which evaluates at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flowengine.engine.alarms import Alarms
from flowengine.errors import ActionRefused, UnknownRun
from flowengine.program.limits import clipped
from flowengine.store.failures import is_unavailable

log = logging.getLogger("flowengine")

#: How the alarm begins. A successful evaluation removes it.
UNEVALUATED = "cannot be evaluated:"
_CURE = (
    "its reports are kept, and it is evaluated again; see the traceback in the log, repair the "
    "code or raise the limit that it names, and restart the processes"
)
_LONGEST_PAUSE = 60.0  # seconds between two evaluations by recovery
_MAX_RUNS = 10_000  # that are remembered


@dataclass(slots=True)
class _Failures:
    count: int = 0
    again: float = 0.0  #: when recovery may evaluate the run again


class FailedEvaluations:
    """Shared by all threads of a process."""

    def __init__(
        self, alarms: Alarms, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._alarms, self._most, self._clock = alarms, most, clock
        self._runs: OrderedDict[str, _Failures] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def watch(self, run_id: str) -> Iterator[None]:
        """Count an error as a failed evaluation of the run, unless the database is unreachable."""
        try:
            yield
        except Exception as problem:
            if not isinstance(problem, UnknownRun | ActionRefused) and not is_unavailable(problem):
                self._count(run_id, problem)
            raise

    def forget(self, run_id: str) -> None:
        """Note that the run was evaluated."""
        if self._runs:
            with self._lock:
                self._runs.pop(run_id, None)

    def is_postponed(self, run_id: str) -> bool:
        """Whether recovery leaves the run alone for now: its evaluation failed again and again."""
        failures = self._runs.get(run_id)
        return failures is not None and self._clock() < failures.again

    def __len__(self) -> int:
        return len(self._runs)

    def _count(self, run_id: str, problem: Exception) -> None:
        with self._lock:
            failures = self._runs.setdefault(run_id, _Failures())
            self._runs.move_to_end(run_id)
            while len(self._runs) > _MAX_RUNS:
                self._runs.popitem(last=False)
            failures.count += 1
            more = failures.count - self._most
            if more < 0:
                return
            failures.again = self._clock() + min(2.0 ** min(more, 10), _LONGEST_PAUSE)
        self._raise_alarm(run_id, problem)

    def _raise_alarm(self, run_id: str, problem: Exception) -> None:
        what = clipped(f"{type(problem).__name__}: {problem}", 500)
        try:
            self._alarms.begin(UNEVALUATED, {run_id: f"{UNEVALUATED} {what}; {_CURE}"})
        except Exception as worse:  # the next failure sets it
            log.debug("the alarm of run %s was not set: %s", run_id, worse)
