"""The decision which calls are made in place, by the thread that would else wait for them.

A call is made in place if its code is in this process, is quick, and needs nothing besides: no
circuit breaker, limit, cache or deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from flowengine.program.event_options import EventOptions
from flowengine.program.function_calls import CallKind, FunctionCall
from flowengine.worker.batch import BatchSizing
from flowengine.worker.call_timeouts import CallTimeouts
from flowengine.worker.handlers import NameSet

#: Names of facets, and task lists: none for all.
Served = tuple[Collection[str], Collection[str]]


class InPlacePolicy:
    """Decides which calls the workers of this process make in place."""

    def __init__(
        self,
        sizing: BatchSizing,
        names: Callable[[], Sequence[str]],
        lists: Callable[[], Collection[str]],
        max_wait: float,
        time_slice: float,
        others_wait: Callable[[], bool] = lambda: True,
    ) -> None:
        """`max_wait` seconds may pass before the unstarted tasks of a batch are released.

        `others_wait` tells at the end of a time slice whether another task is due.
        """
        self.others_wait = others_wait
        self.sizing, self._names, self._lists = sizing, names, lists
        self._set = NameSet()
        self.seconds, self.time_slice = max_wait / 2, time_slice
        self._delegating: set[str] = set()
        self.timeouts = CallTimeouts()

    def served(self) -> Served:
        """Return the facets and the task lists of this process."""
        return self._set.of(self._names()), self._lists()

    def leading(self, calls: Sequence[FunctionCall], served: Served) -> int:
        """Return how many of the first calls are made in place: together they are quick."""
        left, number = self.seconds, 0
        for call in calls:
            if call.kind is not CallKind.STEP:
                if call.kind is not CallKind.EVENT or call.deadline is not None:
                    break
                if not self._is_made_here(call.facet, call.options, *served):
                    break
                left -= self.sizing.average(call.facet)
                if left < 0 and number:
                    break
            number += 1
        return number

    def is_made_here(self, facet: str, options: EventOptions) -> bool:
        """Whether a call of a facet can be made in place: its code is here, and quick."""
        return self._is_made_here(facet, options, *self.served())

    def _is_made_here(
        self, facet: str, options: EventOptions, names: Collection[str], lists: Collection[str]
    ) -> bool:
        if facet not in names or (lists and options.task_list not in lists):
            return False
        if not needs_only_code(options) or facet in self._delegating:
            return False
        return self.sizing.is_quick(facet)

    def delegates(self, facet: str) -> None:
        """Note that a facet continues with a workflow, which only its task can start."""
        self._delegating.add(facet)


def needs_only_code(options: EventOptions) -> bool:
    """Whether nothing but the code of a facet is needed to call it."""
    return not (
        options.breaker
        or options.limit
        or options.rate
        or options.cache is not None
        or options.on_loss == "fail"
    )


def leading_steps(calls: Sequence[FunctionCall]) -> int:
    """Return how many of the first calls are plain functions, which have no task."""
    number = 0
    while number < len(calls) and calls[number].kind is CallKind.STEP:
        number += 1
    return number
