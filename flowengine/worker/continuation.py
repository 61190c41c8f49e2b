"""Which tasks a worker goes on with at once, when its own report has made them ready.

No bell is rung for them and nobody has to claim them: they are written as claimed. What a
worker takes this way must not keep it from its other duties, so quick tasks are taken in
numbers, of others one, and none when its time slice is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from flowengine.evaluator import TaskDefinition
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.batch_sizing import BatchSizing


class Continuation:
    """The choice for one report. A report may concern many runs, each asks."""

    def __init__(
        self,
        identity: WorkerIdentity,
        pace: BatchSizing,
        names: Collection[str],
        lists: Collection[str],
        *,
        batch: int,
        seconds: float,
    ) -> None:
        """Take no more of a facet than should take so long; a group wider than a batch is left."""
        self.identity = identity
        self._sizing, self._names, self._lists, self._batch = pace, names, lists, batch
        self._seconds = seconds
        self._left: dict[str, int] = {}  #: how many more of a facet
        self._room = 4 * batch
        self._took_slow = False

    def choose(self, due: Sequence[TaskDefinition]) -> Collection[str]:
        """Return the tasks that this worker takes."""
        ours = [task for task in due if self._is_ours(task)]
        # A wide group is for everybody.
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

    def _is_ours(self, task: TaskDefinition) -> bool:
        if self._lists and task.task_list_name not in self._lists:
            return False
        return task.name in self._names
