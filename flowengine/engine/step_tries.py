"""The tries of steps: which failed, when the next one is due, how long they waited and ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.engine.program_memory import ProgramMemory
from flowengine.engine.results import FailedTry, RetryWait
from flowengine.engine.try_records import NOT_WAITED, TryInfo, Waited, try_info, waiting_queues
from flowengine.evaluator.functions import DIVERGED
from flowengine.evaluator.states import TaskState
from flowengine.program.function_options import function_of
from flowengine.program.nodes import Json
from flowengine.store import Session, codec
from flowengine.store.admission import StoredQueue
from flowengine.store.records import circuit_of
from flowengine.store.shown_values import shown_error
from flowengine.store.tasks import LastFailure, StoredTry, WaitingRetry

_MAX_RETRIES = 1000  #: tasks that are looked at for a list of runs


@dataclass(frozen=True, slots=True)
class StepTries:
    """All tries of a step together. Times in milliseconds."""

    number: int  #: of the last try
    losses: int
    state: str
    task_list: str
    updated: int
    circuit: str
    due: int  #: of the last try
    parked_until: int | None  #: its circuit breaker is open, or its code diverged
    retry_at: int | None  #: the last try waits for this time, after an earlier one failed
    queued: int  #: how long its tries could be claimed and waited for a worker
    waited: Waited  #: of all tries
    blocked_on: str | None  #: the limit or rate for which the last try waits
    progress: Json  #: of the last try
    all: list[TryInfo]
    ran: int | None  #: how long workers ran its tries; None: no try has begun
    failed: list[FailedTry]
    child_run: str | None  #: that the last try has started, or taken up

    def shown(self, allowed: int | None, activations: int) -> dict[str, Any]:
        """Return the fields that a step has in every read model; `allowed` tries it may have.

        `activations` of a durable function count those that ran ahead, which have no task.
        """
        return {
            "tries": max(self.number, activations),
            "losses": self.losses,
            "task_state": self.state,
            "circuit": self.circuit,
            "task_list": self.task_list,
            "task_due": self.due,
            "parked_until": self.parked_until,
            "retry_at": self.retry_at,
            "allowed_tries": allowed if self.failed else None,
            "failed_tries": self.failed,
            "queued": self.queued,
            "waited": self.waited,
            "blocked_on": self.blocked_on,
            "progress": self.progress,
            "ran": self.ran,
        }


def tries_by_step(session: Session, rows: Iterable[StoredTry], now: int) -> dict[str, StepTries]:
    """Return the tries of each step. Rows come in the order of their creation."""
    by_step: defaultdict[str, list[StoredTry]] = defaultdict(list)
    for row in rows:
        by_step[row.step_id].append(row)
    queues = waiting_queues(session, [tries[-1] for tries in by_step.values()])
    diverged = _diverged(session, [tries[-1] for tries in by_step.values()])
    return {
        step_id: _together(tries, queues, now, step_id in diverged)
        for step_id, tries in by_step.items()
    }


def _diverged(session: Session, last: Iterable[StoredTry]) -> set[str]:
    """Return the steps whose activation is parked until fitting code is deployed."""
    parked = [
        row
        for row in last
        if row.state == TaskState.PENDING
        and row.lease > 0
        and row.waited_circuit
        and not row.limit_key
        and function_of(row.name) is not None
    ]
    runs = {run_id: session.runs.get(run_id) for run_id in {row.run_id for row in parked}}
    # A task may also be parked because another agent has the lock of its step.
    alarmed = {
        run_id
        for run_id, run in runs.items()
        if run is not None and (run.alarm or "").startswith(DIVERGED)
    }
    return {row.step_id for row in parked if row.run_id in alarmed}


def _together(
    rows: Sequence[StoredTry], queues: Mapping[str, StoredQueue], now: int, has_diverged: bool
) -> StepTries:
    last, circuit = rows[-1], circuit_of(rows[-1].limit_key)
    tries = [try_info(row, queues, now) for row in rows]
    waited = sum((one.waited for one in tries), NOT_WAITED)
    queue = queues.get(last.queue or "") if last.state == TaskState.WAITING else None
    is_waiting = last.state in (TaskState.PENDING, TaskState.WAITING) and last.due > now
    # A retry may be due later, too, but was never claimed, so its lease was never raised.
    is_parked = last.state == TaskState.PENDING and last.lease > 0
    is_parked = is_parked and (bool(circuit) or has_diverged)
    return StepTries(
        number=last.try_number,
        losses=last.losses,
        state=last.state,
        task_list=last.task_list_name,
        updated=last.updated,
        circuit=circuit,
        due=last.due,
        parked_until=last.due if is_parked else None,
        retry_at=last.due if is_waiting and not is_parked and len(rows) > 1 else None,
        queued=waited.queue,
        waited=waited,
        blocked_on=queue.blocked_on if queue else None,
        progress=tries[-1].progress,
        all=tries,
        ran=_ran(rows, now),
        failed=[_failed(row) for row in rows[:-1] if row.error],
        child_run=codec.load(last.handed)["run"] if last.handed else None,
    )


_UNCLAIMED = (TaskState.PENDING, TaskState.WAITING, TaskState.HELD)


def _ran(rows: Sequence[StoredTry], now: int) -> int | None:
    times = [
        max(0, (now if row.state == TaskState.RUNNING else row.updated) - row.started)
        for row in rows
        if row.started is not None and row.state not in _UNCLAIMED
    ]
    return sum(times) if times else None


def _failed(row: StoredTry | LastFailure) -> FailedTry:
    error = shown_error(row.error, "") or {}
    return FailedTry(row.try_number, row.updated, error["type"], error["message"])


# --- how many tries are allowed ---


def allowed_tries(session: Session, program_hash: str) -> Mapping[str, int]:
    """Return the number of tries of each event facet of a program that has more than one."""
    return _allowed.of(session, program_hash)


def _retries(program: Any) -> Iterable[tuple[str, int]]:
    pending = [("", program)]
    while pending:
        namespace, node = pending.pop()
        for declared in node.get("declarations", ()):
            name = f"{namespace}.{declared.get('name', '')}".lstrip(".")
            if declared.get("type") == "Namespace":
                pending.append((name, declared))
            attempts = declared.get("options", {}).get("retry", {}).get("attempts")
            if attempts is not None:
                yield name, attempts


_allowed: ProgramMemory[Mapping[str, int]] = ProgramMemory(lambda program: dict(_retries(program)))


# --- runs that wait for a retry ---


def waiting_retries(session: Session, run_ids: Collection[str]) -> dict[str, RetryWait]:
    """Return the next retry of each of these runs that waits for one."""
    if not run_ids:
        return {}
    first: dict[str, WaitingRetry] = {}
    for row in session.tasks.waiting_retries(sorted(run_ids), session.now(), _MAX_RETRIES):
        first.setdefault(row.run_id, row)
    steps = [row.step_id for row in first.values()]
    failed = session.tasks.last_failed(list(first), steps)
    found = {}
    for run_id, row in first.items():
        if row.step_id in failed:
            allowed = allowed_tries(session, row.program_hash).get(row.name)
            last = _failed(failed[row.step_id])
            found[run_id] = RetryWait(row.step_path, row.due, row.try_number, allowed, last)
    return found
