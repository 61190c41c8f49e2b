"""Continuations: tasks that a report makes ready, and that its worker takes at once.

They need neither a wake-up nor a claim: the commit of the report writes them as claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowengine.engine.staging import AheadRun
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Report
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.batch import BatchSizing

if TYPE_CHECKING:
    from flowengine.worker.run_ahead import RunAhead


class Continuation:
    """The next tasks of a thread, after one report; the report may be of many runs.

    A worker must stay available for other task lists, so it takes several quick tasks or one slow
    task, and none after its time slice.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        sizing: BatchSizing,
        names: Collection[str],
        lists: Collection[str],
        *,
        batch: int,
        seconds: float,
        ahead: RunAhead | None = None,
    ) -> None:
        """Take at most `seconds` of work of a facet, and no group wider than a batch."""
        self.identity = identity
        self._sizing, self._names, self._lists, self._batch = sizing, names, lists, batch
        self._seconds = seconds
        self._left: dict[str, int] = {}  #: how many more tasks of a facet
        self._room = 4 * batch
        self._took_slow = False
        self._ahead = ahead

    def run_ahead(self, by_run: Mapping[str, Sequence[Report]], now: int) -> Sequence[AheadRun]:
        return () if self._ahead is None else self._ahead.run(by_run, now)

    def settle_ahead(self, ahead: Sequence[Any], written: Collection[tuple[str, str]]) -> None:
        if self._ahead is not None:
            self._ahead.settle(ahead, written)

    def choose(self, due: Sequence[TaskDefinition]) -> Collection[str]:
        ours = [task for task in due if self._can_run(task)]
        # The tasks of a wide group are left for all workers.
        width = Counter(task.join for task in ours if task.join) if len(ours) > self._batch else {}
        quick: list[TaskDefinition] = []
        for task in ours:
            if task.losses or task.runs_once or not self._sizing.is_quick(task.name):
                continue
            if width.get(task.join, 0) > self._batch or len(quick) == self._room:
                continue
            if task.name not in self._left:
                self._left[task.name] = self._sizing.fitting([task.name], self._seconds)
            if self._left[task.name]:
                self._left[task.name] -= 1
                quick.append(task)
        self._room -= len(quick)
        if quick or self._took_slow or not ours:
            return {task.uuid for task in quick}
        if width.get(ours[0].join, 0) > self._batch:
            return ()
        self._took_slow = True
        return {ours[0].uuid}

    def _can_run(self, task: TaskDefinition) -> bool:
        return task.name in self._names and (not self._lists or task.task_list_name in self._lists)


class AsyncContinuation:
    """The next tasks of async facets that their report makes ready, while there is room."""

    def __init__(
        self, identity: WorkerIdentity, room: int, is_async: Callable[[str], bool]
    ) -> None:
        self.identity = identity
        self._room, self._is_async = room, is_async

    def run_ahead(self, by_run: object, now: int) -> Sequence[AheadRun]:
        return ()  # its thread only settles coroutines of facets

    def settle_ahead(self, ahead: object, written: object) -> None:
        """Do nothing: no function is run here."""

    def choose(self, due: Sequence[TaskDefinition]) -> Collection[str]:
        chosen = [task.uuid for task in due if self._is_async(task.name)][: max(0, self._room)]
        self._room -= len(chosen)
        return chosen
