"""The calls of durable functions: the record of a function, and calls that were made in place.

The keys of a function's calls are one range of the index of keys, in the order of their numbers
(`evaluator.call_statements`): a record is read by one query, without an index of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flowengine.evaluator import Step
from flowengine.evaluator.call_statements import key_prefix, plan_of_call
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.program.function_calls import CallEnd, FunctionRecord, RecordedCall
from flowengine.program.standard import RESULT
from flowengine.store.backend import HeldActivation
from flowengine.store.commits import CommitPlan
from flowengine.store.parts import Part
from flowengine.store.records import STEP_COLUMNS, step_from

_COLUMNS = ", ".join(STEP_COLUMNS)
_RANGE = "run_id = %s AND key >= %s AND key < %s AND NOT superseded"
#: Without the arguments of calls: a replay compares their digests.
_CALL = ", ".join("NULL" if name == "params" else name for name in STEP_COLUMNS)
_RECORD = (
    f"SELECT {_COLUMNS} FROM flowengine_step WHERE run_id = %s AND key = %s AND NOT superseded "
    f"UNION ALL SELECT {_CALL} FROM flowengine_step WHERE {_RANGE}"
)
_LAST = f"SELECT created FROM flowengine_step WHERE {_RANGE} ORDER BY key DESC LIMIT 1"
_BEHIND = "g"  # behind every hex digit


class StoredFunction(NamedTuple):
    """A durable function as it is stored."""

    step: Step
    record: FunctionRecord
    seen: int  #: the number of ends that the evaluator has counted, all of them in the record


class MadeCalls(NamedTuple):
    """Calls that an activation has made itself, and the task that must be held to record them."""

    run_id: str
    task_id: str
    lease: int
    calls: Sequence[Step]


class Calls(Part):
    """Reads the records of functions, and inserts calls that were made in place."""

    def record(self, run_id: str, key: str, path: str) -> StoredFunction | None:
        """Return a function with its record; None if its step was superseded."""
        rows = self._session.rows(_RECORD, (run_id, key, *_range(run_id, path)))
        steps = [step_from(row) for row in rows]
        function = next((step for step in steps if step.key == key), None)
        if function is None:
            return None
        calls = sorted(
            (step for step in steps if step.object_type == ObjectType.FUNCTION_CALL),
            key=lambda step: step.index,
        )
        self._session.payloads.fill_in([call.returns for call in calls])
        ends = [call for call in calls if has_told_end(call)]
        heard = {number: place for place, number in enumerate(function.heard)}
        # Ends that an activation heard come first: those of calls in place have no number.
        ends.sort(key=lambda call: (heard.get(call.index, len(heard)), call.item_count, call.index))
        found = FunctionRecord(
            tuple(recorded(call) for call in calls), tuple(end_of(call) for call in ends)
        )
        return StoredFunction(function, found, function.item_count)

    def ends(self, run_id: str, key: str, calls: Iterable[str]) -> StoredFunction | None:
        """Return a function, and the ends of those of these calls that have ended, in order."""
        steps = self._session.steps.load({run_id: [key, *calls]})[run_id]
        function = steps.pop(key, None)
        if function is None:
            return None
        ended = sorted(filter(has_told_end, steps.values()), key=lambda call: call.item_count)
        self._session.payloads.fill_in([call.returns for call in ended])
        record = FunctionRecord(ends=tuple(end_of(call) for call in ended))
        return StoredFunction(function, record, function.item_count)

    def last_recorded(self, run_id: str, path: str) -> int | None:
        """Return when the last call of the function at that path was recorded."""
        rows = self._session.rows(_LAST, _range(run_id, path))
        return int(rows[0][0]) if rows else None

    def insert(self, made: Sequence[MadeCalls]) -> Callable[[], set[str]]:
        """Insert the calls that activations of different runs have made themselves.

        One statement, which locks the rows of their tasks and no others: a process that takes a
        lease away waits for it, or is seen by it. The server may still execute it. The result is
        called in this session or a later one of this thread, and waits for it: the runs whose
        lease is held. Nothing is inserted for the others.
        """
        plan = CommitPlan()
        for one in made:
            plan.add_steps(one.calls, (), {})
            plan.gather_payloads(one.run_id, one.calls[-1].updated)
        held = [HeldActivation(one.run_id, one.task_id, one.lease) for one in made]
        return self._session.dialect.insert_calls(self._session.executor, plan, held)


def _range(run_id: str, path: str) -> tuple[str, str, str]:
    prefix = key_prefix(path)
    return run_id, prefix, prefix + _BEHIND


def has_told_end(call: Step) -> bool:
    """Whether a call has ended and its function hears of it: not if the function cancelled it."""
    return call.is_final and not _is_dropped(call)


def _is_dropped(call: Step) -> bool:
    # Only the cancellation by the function itself has no place among the ends.
    return call.state == StepState.CANCELLED and not call.item_count


def recorded(call: Step) -> RecordedCall:
    changes = plan_of_call(call.address).changes if '"changes"' in call.address else ()
    dropped = _is_dropped(call)
    return RecordedCall(call.facet_name, call.digest or "", call.heard, changes, dropped)


def result_of(returns: Mapping[str, Any]) -> Any:
    """Return the result of a call. A facet of AFL, or a workflow of it, gives it another name."""
    if RESULT in returns:
        return returns[RESULT]
    named = [value for name, value in returns.items() if name != "run"]
    return named[0] if len(named) == 1 else dict(returns) or None


def end_of(call: Step) -> CallEnd:
    if call.state == StepState.COMPLETE:
        return CallEnd(call.index, call.updated, result_of(call.returns))
    error: dict[str, Any] = call.error or {"type": "Cancelled", "message": "it has not completed"}
    return CallEnd(call.index, call.updated, error=error)
