"""Makes calls of tools in place, for the model calls that a worker tries.

After the death of a worker none is made in place: a tool that kills its worker has a run then,
whose losses are counted. If the calls of an answer take longer than a second, the answer is
recorded alone, under the lease of the try, and the tools are called by runs of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowengine.agents.tools_in_place import ToolInPlace
from flowengine.authoring import EventFacet
from flowengine.engine import Engine
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.records import id_within
from flowengine.evaluator.triggers import Succeeded
from flowengine.program.nodes import Json
from flowengine.program.standard import RESULT
from flowengine.store import codec
from flowengine.worker.execution import OpenLog
from flowengine.worker.handlers import FindHandler
from flowengine.worker.in_place_calls import InPlacePolicy, executed_in_place

_LONGEST = 1.0  # seconds for which the record of an answer may wait for the tools


class ToolsInPlace:
    """Shared by all threads of a process."""

    def __init__(self, engine: Engine, policy: InPlacePolicy, find: FindHandler) -> None:
        self._engine, self._policy, self._find = engine, policy, find

    def make(
        self,
        task: TaskDefinition,
        beat: Callable[[str | None], bool],
        open_log: OpenLog | None,
        answer: Mapping[str, Json],
        calls: Sequence[ToolInPlace],
    ) -> Mapping[int, Json]:
        """Make the calls of an answer, which is the result of a task, as far as they are quick."""
        quick = [] if task.losses else self._quick(calls)
        results: dict[int, Json] = {}
        if not quick:
            return results

        def expire() -> None:
            self._engine.report(task, Succeeded({RESULT: dict(answer)}, is_from_code=True))

        about = (task.workflow_id, task.step_path)
        with self._policy.timeouts.over(_LONGEST, expire, *about) as watched:
            for call, facet in quick:
                began = time.monotonic()
                called = _task_of(task, call)
                outcome = executed_in_place(self._engine, called, facet, beat, open_log)
                self._policy.sizing.count(call.facet, time.monotonic() - began)
                if watched.has_expired:
                    break  # the report of this try will be refused
                if isinstance(outcome, Succeeded):
                    results[call.place] = codec.plain(outcome.result).get(RESULT)
                elif outcome is None:
                    self._policy.delegates(call.facet)
        return results

    def _quick(self, calls: Sequence[ToolInPlace]) -> list[tuple[ToolInPlace, Any]]:
        """Return the calls that are made here, with their code: together they are quick."""
        found: list[tuple[ToolInPlace, Any]] = []
        left = self._policy.seconds
        for call in calls:
            facet = self._find(call.facet)
            if not isinstance(facet, EventFacet) or facet.options.effects:
                continue
            if self._policy.is_made_here(call.facet, facet.options):
                left -= self._policy.sizing.average(call.facet)
                if left < 0 and found:
                    break
                found.append((call, facet))
        return found


def _task_of(task: TaskDefinition, call: ToolInPlace) -> TaskDefinition:
    """Return the call as a part of the task whose try makes it."""
    return TaskDefinition(
        uuid=task.uuid,
        name=call.facet,
        runner_id=task.runner_id,
        workflow_id=task.workflow_id,
        flow_id=call.program_hash,
        step_id=id_within(task.step_id, "tool", call.place),
        data=codec.plain(dict(call.arguments)),  # the code may change it
        step_key=task.step_key,
        step_path=task.step_path,
        lease=task.lease,
        tenant=task.tenant,
    )
