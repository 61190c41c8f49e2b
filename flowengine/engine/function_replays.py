"""Replay stored durable functions with the code of this process, without effects.

An activation returns the calls that a function wants to be made, and nothing here makes them. So a
deploy can be checked against the records of open runs, and of those that ended last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowengine.errors import Divergence
from flowengine.evaluator.states import StepState
from flowengine.program.function_calls import Progress
from flowengine.program.standard import RESULT
from flowengine.store import Store
from flowengine.store.calls import StoredFunction
from flowengine.store.function_steps import FunctionStep

if TYPE_CHECKING:
    from flowengine.authoring.functions import DurableFunction

MAX_OPEN = 10_000  #: functions of open runs that are replayed

#: Returns the code of a function by the name of its facet; None: there is none.
FindFunction = Callable[[str], "DurableFunction | None"]


@dataclass(frozen=True, slots=True)
class ReplayedFunction:
    """How the code of this process fits the record of one durable function."""

    facet: str
    run_id: str
    path: str
    is_open: bool  #: its run has not ended
    calls: int  #: of its record
    problem: str = ""  #: empty: the code fits
    warning: str = ""


class FunctionReplays:
    """Replays the durable functions of a tenant."""

    def __init__(self, database: Store, tenant: str = "") -> None:
        self._database, self._tenant = database, tenant

    def replay(self, find: FindFunction, *, recent: int) -> Iterator[ReplayedFunction]:
        """Replay the functions of open runs, and up to `recent` of runs that have ended."""
        with self._database.read() as session:
            steps = session.function_steps
            open_ones = steps.of_open_runs(self._tenant, MAX_OPEN)
            ended = steps.of_ended_runs(self._tenant, recent) if recent else []
        for is_open, found in ((True, open_ones), (False, ended)):
            for step in found:
                if (replayed := self._replayed(step, find, is_open)) is not None:
                    yield replayed

    def _replayed(
        self, step: FunctionStep, find: FindFunction, is_open: bool
    ) -> ReplayedFunction | None:
        function = find(step.facet)
        known = (step.facet, step.run_id, step.path, is_open)
        if function is None:
            # The code of an ended run need not be kept.
            return ReplayedFunction(*known, 0, _no_code(step.facet)) if is_open else None
        with self._database.read() as session:
            stored = session.calls.record(step.run_id, step.key, step.path)
            if stored is not None:
                session.payloads.fill_in([stored.step.params, stored.step.returns])
        if stored is None:
            return None  # it was retried since
        calls = len(stored.record.calls)
        try:
            progress = _replay(function, stored)
        except Divergence as divergence:
            return ReplayedFunction(*known, calls, str(divergence))
        except Exception as problem:
            what = f"cannot be replayed: {type(problem).__name__}: {problem}"
            return ReplayedFunction(*known, calls, what)
        other = _other_end(progress, stored) if stored.step.is_final else ""
        return ReplayedFunction(*known, calls, other, str(progress.warning or ""))


def _replay(function: DurableFunction, stored: StoredFunction) -> Progress:
    from flowengine.authoring.functions import Activation  # asyncio, which others do not need

    step = stored.step
    activation = Activation(
        function,
        step.params,
        step_id=f"{step.run_id}:{step.key}",
        started=step.created,
        record=stored.record,
    )
    with activation:
        return activation.advance()


def _other_end(progress: Progress, stored: StoredFunction) -> str:
    """Return how the end of a replay differs from the recorded one."""
    step, ended = stored.step, progress.ended
    if step.state not in (StepState.COMPLETE, StepState.ERROR):
        return ""  # it was cancelled or skipped
    if ended is None:
        made = [call.facet for call in progress.calls]
        goes_on = f"calls {made[0]}" if made else "waits"
        return f"has ended after {len(stored.record.calls)} calls, and the code {goes_on} then"
    if step.state == StepState.ERROR:
        return "has failed, and the code returns a result" if ended.error is None else ""
    if ended.error is not None:
        return f"has completed, and the code fails: {ended.error['message']}"
    if ended.result != step.returns.get(RESULT):
        return "has another result with this code"
    return ""


def _no_code(facet: str) -> str:
    return (
        f"{facet} has no code here, and this run is open: keep that version beside the new one "
        "until its runs have ended"
    )
