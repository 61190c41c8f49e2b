"""Makes calls of tools in place, for the model calls that a worker tries, and lets tries go on.

A try after a loss makes none: a tool that kills its worker has a run then, which counts its losses.
If the calls of an answer take longer than a second, the answer is recorded alone, under the lease
of the try, and the tools are called by runs of their own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flowengine.agents.profiles import call_program
from flowengine.agents.tools_in_place import CONTROL, NUMBER, ToolInPlace
from flowengine.authoring import EventFacet
from flowengine.engine import Engine
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.records import id_within
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.program.nodes import Json
from flowengine.program.standard import RESULT
from flowengine.store import codec
from flowengine.worker.call_timeouts import WatchedCall
from flowengine.worker.execution import Attempt
from flowengine.worker.handlers import FindHandler
from flowengine.worker.in_place_calls import executed_in_place
from flowengine.worker.in_place_policy import InPlacePolicy, needs_only_code

_LONGEST_WAIT = 1.0  # seconds for which the record of an answer may wait for its tools
_OF_TIMEOUT = 0.1  # part of a model call's timeout within which its try may begin another one
_MOST_BYTES = codec.INLINE_BYTES  # of all results of one answer: larger ones have runs


class InPlaceTools:
    """Shared by all threads of a process."""

    def __init__(self, engine: Engine, policy: InPlacePolicy, find: FindHandler) -> None:
        self._engine, self._policy, self._find = engine, policy, find
        self._digests: dict[str, tuple[object, str]] = {}  #: by facet: its code, its program
        self._with_runs: set[str] = set()  #: facets whose results were of no use in place

    def call_tools(
        self, outer: Attempt, answer: Mapping[str, Json], calls: Sequence[ToolInPlace]
    ) -> Mapping[int, Json]:
        """Make the calls of an answer, the result of the outer try, as far as they are quick."""
        quick = [] if outer.task.losses else self._quick(calls)
        results: dict[int, Json] = {}
        if not quick:
            return results
        current, began = "", time.monotonic()

        def expire() -> None:
            self._policy.sizing.count(current, time.monotonic() - began)  # it is not quick
            recorded = Succeeded({RESULT: dict(answer)}, is_from_code=True)
            self._engine.report(outer.task, recorded)
            outer.lose()

        about = (outer.task.workflow_id, outer.task.step_path)
        limits = [limit for call, facet in quick for limit in (call.timeout, facet.options.timeout)]
        longest = min([_LONGEST_WAIT, *(limit for limit in limits if limit is not None)])
        left = _MOST_BYTES
        with self._policy.timeouts.over(longest, expire, *about) as watched:
            for call, facet in quick:
                current, began = call.facet, time.monotonic()
                outcome = self._outcome(outer, answer, call, facet, watched)
                if watched.has_expired:
                    break  # the answer is recorded: the report of this try will be refused
                self._policy.sizing.count(call.facet, time.monotonic() - began)
                if outcome is None:
                    self._policy.delegates(call.facet)
                if not isinstance(outcome, Succeeded):
                    continue
                result = codec.plain(outcome.result).get(RESULT)
                size = len(codec.dump(result).encode())
                if size > left or (isinstance(result, dict) and CONTROL in result):
                    self._with_runs.add(call.facet)
                    continue
                left -= size
                results[call.place] = result
        return results

    def may_go_on(self, outer: Attempt, seconds: float) -> bool:
        """Whether a try that has taken so many seconds may make the next model call.

        Within its time slice, and if nothing has gone wrong before: the tries and losses of each
        further call are counted by a run of its own then.
        """
        task = outer.task
        facet = self._find(task.name)
        if not isinstance(facet, EventFacet) or not needs_only_code(facet.options):
            return False
        if task.losses or task.try_number > 1 or not self._engine.settings.continuation:
            return False
        longest, timeout = self._policy.time_slice, facet.options.timeout
        return seconds < (longest if timeout is None else min(longest, timeout * _OF_TIMEOUT))

    def _quick(self, calls: Sequence[ToolInPlace]) -> list[tuple[ToolInPlace, Any]]:
        """Return the calls that are made here, with their code: together they are quick."""
        found: list[tuple[ToolInPlace, Any]] = []
        left = self._policy.seconds
        for call in calls:
            facet = self._find(call.facet)
            if not isinstance(facet, EventFacet) or facet.options.effects:
                continue
            if call.facet in self._with_runs or self._digest(facet) != call.program_hash:
                continue
            if self._policy.is_made_here(call.facet, facet.options):
                left -= self._policy.sizing.average(call.facet)
                if left < 0 and found:
                    break
                found.append((call, facet))
        return found

    def _digest(self, facet: EventFacet[..., Any]) -> str:
        """Return the hash of the program of one call of a facet, as this code declares it.

        Another one belongs to a workflow that only has such a name, or to the code from before a
        deploy, whose parameters may have other defaults.
        """
        known = self._digests.get(facet.name)
        if known is None or known[0] is not facet:
            digest = self._engine.programs.prepare(call_program(facet.definition)[1])[0]
            known = self._digests[facet.name] = facet, digest
        return known[1]

    def _outcome(
        self,
        outer: Attempt,
        answer: Mapping[str, Json],
        call: ToolInPlace,
        facet: Any,
        watched: WatchedCall,
    ) -> Succeeded | Failed | None:
        def beat(_: str | None) -> bool:
            # Without the progress: that of the model call is the draft of its answer.
            return not watched.has_expired and outer.beat(None)

        task = _task_of(outer.task, answer, call)
        open_log = outer.open_same_log if outer.has_log else None
        return executed_in_place(self._engine, task, facet, beat, open_log, outer)


def _task_of(task: TaskDefinition, answer: Mapping[str, Json], call: ToolInPlace) -> TaskDefinition:
    """Return the call as a part of the task whose try makes it, with a key of its own."""
    return TaskDefinition(
        uuid=task.uuid,
        name=call.facet,
        runner_id=task.runner_id,
        workflow_id=task.workflow_id,
        flow_id=call.program_hash,
        step_id=id_within(task.step_id, "tool", str(answer[NUMBER]), call.place),
        data=codec.plain(dict(call.arguments)),  # the code may change it
        step_key=task.step_key,
        step_path=task.step_path,
        lease=task.lease,
        tenant=task.tenant,
    )
