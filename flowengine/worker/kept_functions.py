"""Coroutines of durable functions that wait in this process for their next activation.

A kept coroutine saves the replay of its record. It is kept when the report of its activation was
accepted, and goes on if the next activation follows directly: another process that has run one in
between, or a part of it, has moved the record on, and the coroutine is dropped. Each entry may be
evicted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowengine.evaluator import Step, TaskDefinition
from flowengine.evaluator.call_statements import key_prefix, prefix_of_call
from flowengine.program.function_calls import FunctionCall

if TYPE_CHECKING:
    from flowengine.authoring.functions import Activation


@dataclass(slots=True)
class KeptFunction:
    """A coroutine, and the place of the record that it has reached."""

    activation: Activation
    function: Step  #: its row, as it was read
    number: int  #: of the activation that it has run last
    seen: int = 0  #: ends that it was told of, as the row counts them
    unreported: Sequence[FunctionCall] = ()  #: calls that the last report had no room for
    unreported_cancels: Sequence[int] = ()  #: those of them that the function has cancelled

    def follows(self, task: TaskDefinition) -> bool:
        """Whether an activation goes on where this one has ended.

        It is not if another process has claimed it before: that one may have recorded calls, and
        have given the task back without counting that as a try.
        """
        is_next = task.try_number == self.number + 1 and not task.losses and task.lease == 1
        return is_next and task.step_id == self.function.id


def function_of_call(task: TaskDefinition) -> str:
    """Return by what a kept function is found from the task of one of its calls."""
    return task.workflow_id + prefix_of_call(task.step_key)


class KeptFunctions:
    """Shared by all threads of a process; a coroutine is used by the thread that took it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, KeptFunction] = OrderedDict()
        self._steps: dict[
            str, str
        ] = {}  #: the ids of functions, by their run and the keys of calls
        self._lock = threading.Lock()

    def keep(self, kept: KeptFunction) -> None:
        """Keep a coroutine; those that were used least recently are dropped."""
        evicted = []
        with self._lock:
            evicted.append(self._removed(kept.function.id))
            self._kept[kept.function.id] = kept
            self._steps[_place(kept)] = kept.function.id
            while len(self._kept) > self._most:
                evicted.append(self._removed(next(iter(self._kept))))
        for other in evicted:
            if other is not None:
                other.activation.drop()

    def take(self, task: TaskDefinition) -> KeptFunction | None:
        """Remove the coroutine of a function; None if there is none that goes on with this task."""
        with self._lock:
            found = self._removed(task.step_id)
        if found is None or found.follows(task):
            return found
        found.activation.drop()
        return None

    def take_at(self, place: str) -> KeptFunction | None:
        """Remove the coroutine of the function that `function_of_call` has returned."""
        with self._lock:
            step_id = self._steps.get(place)
            return None if step_id is None else self._removed(step_id)

    def _removed(self, step_id: str) -> KeptFunction | None:
        found = self._kept.pop(step_id, None)
        if found is not None:
            self._steps.pop(_place(found), None)
        return found

    def clear(self) -> None:
        """Drop all coroutines, in the thread that calls."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), OrderedDict()
            self._steps.clear()
        for one in kept:
            one.activation.drop()

    def __len__(self) -> int:
        return len(self._kept)


def _place(kept: KeptFunction) -> str:
    return kept.function.run_id + key_prefix(kept.function.path)
