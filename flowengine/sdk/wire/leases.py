"""Leases: whether a report of a task still counts. The decision is pure; the rows fence it again.

A server of a token has a boot id that is derived from the token. So the row of a task says which
token holds it, and the request needs to name the task and the lease alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from flowengine.engine import Engine
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.states import TaskState
from flowengine.evaluator.triggers import Failed, Outcome, Succeeded
from flowengine.sdk.handlers import CallbackHandler
from flowengine.sdk.results import CallbackResults
from flowengine.sdk.wire.access import Caller
from flowengine.sdk.wire.refusals import Refused
from flowengine.store.recovery_queries import TIMEOUT
from flowengine.worker.breakers import TaskPermit

_MAX_KNOWN = 20_000  # tasks that are remembered; others are read when they are reported
Key = tuple[str, int]  #: the id of a task, and a lease


class Verdict(StrEnum):
    HELD = "held"
    COMPLETED = "completed"  #: this lease has reported a result
    FAILED = "failed"  #: this lease has reported an error, or a result that was refused
    LOST = "lost"


def verdict(
    state: str, held: int, given: int, outcome: str | None, error_type: str | None, *, is_own: bool
) -> Verdict:
    """Decide about a report with the lease `given`, of a task whose row has the lease `held`."""
    if not is_own or held != given:
        return Verdict.LOST
    if state == TaskState.RUNNING:
        return Verdict.HELD
    if outcome == "succeeded":
        return Verdict.COMPLETED
    # Recovery ends tries under their own lease: by a timeout, or as lost.
    if outcome in ("failed", "final") and error_type != TIMEOUT:
        return Verdict.FAILED
    return Verdict.LOST


@dataclass(frozen=True, slots=True)
class KnownTask:
    task: TaskDefinition  #: without its data
    permit: TaskPermit | None = None  #: of its circuit breaker


class KnownTasks:
    """The tasks that this process has given to agents. Shared by all its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Key, KnownTask] = OrderedDict()

    def add(self, task: TaskDefinition, permit: TaskPermit | None) -> None:
        with self._lock:
            self._known[task.uuid, task.lease] = KnownTask(replace(task, data=None), permit)
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)

    def get(self, key: Key) -> KnownTask | None:
        return self._known.get(key)

    def remove(self, keys: Iterable[Key]) -> None:
        """Forget tasks that nobody works on; their circuit breakers learn nothing of them."""
        with self._lock:
            removed = [self._known.pop(key, None) for key in keys]
        for known in removed:
            if known is not None and known.permit is not None:
                with suppress(asyncio.CancelledError), known.permit:
                    raise asyncio.CancelledError


class AgentFailed(Exception):
    """The error of an agent, for the circuit breaker of its task."""


class Leases:
    """Reports, releases and heartbeats of tasks, as agents send them."""

    def __init__(self, engine: Engine, known: KnownTasks) -> None:
        self._engine, self._known = engine, known
        agent = CallbackHandler("agent", lambda payload: None)
        self._results = CallbackResults(engine, lambda name: agent)

    def report(
        self, caller: Caller, key: Key, outcome: Outcome
    ) -> tuple[TaskDefinition | None, Verdict, bool]:
        """Record how a try ended: its task, how it is recorded, and whether it was before.

        Raises Refused if the lease is lost, or has reported otherwise, or if the result does not
        fit: then the step has failed.
        """
        expected = Verdict.COMPLETED if isinstance(outcome, Succeeded) else Verdict.FAILED
        found = self._held(caller, key)
        if isinstance(found, Verdict):
            return None, _repeated(key, found, expected), True
        task = found.task
        checked = self._results.storable(task, outcome)
        if not self._engine.report(task, checked):
            again = self._read(caller, key)
            self._known.remove([key])
            now = Verdict.LOST if isinstance(again, KnownTask) else again
            return None, _repeated(key, now, expected), True
        self._settle(key, found, checked)
        if isinstance(checked, Failed) and expected is Verdict.COMPLETED:
            raise Refused("refused_result", str(checked.error["message"]))
        return task, expected, False

    def _settle(self, key: Key, known: KnownTask, outcome: Outcome) -> None:
        with suppress(AgentFailed), known.permit or nullcontext():
            if isinstance(outcome, Failed):
                raise AgentFailed(outcome.error.get("message", ""))
        if known.permit is not None:
            known = replace(known, permit=None)
            self._known.add(known.task, None)
        self._known.remove([key])

    def release(self, caller: Caller, key: Key) -> bool:
        """Give a task back; False if it was not held any more."""
        if not isinstance(self._held(caller, key), KnownTask):
            return False
        self._known.remove([key])
        return self._engine.release_held([key])

    def beat(self, caller: Caller, key: Key, progress: str | None) -> bool:
        """Record that a task is being worked on; False: its result is not wanted."""
        found = self._held(caller, key)
        if not isinstance(found, KnownTask):
            return False
        is_wanted = self._engine.heartbeat(found.task, progress)
        if not is_wanted:
            self._known.remove([key])
        return is_wanted

    def _held(self, caller: Caller, key: Key) -> KnownTask | Verdict:
        known = self._known.get(key)
        if known is not None and _is_own(caller, known.task):
            return known
        return self._read(caller, key)

    def _read(self, caller: Caller, key: Key) -> KnownTask | Verdict:
        with self._engine.database.read() as session:
            row = session.tasks.by_id(key[0])
        tenant = caller.tenant()
        if row is None or (tenant is not None and row[0].tenant != tenant):
            raise Refused("unknown_task", f"there is no task {key[0]}")
        task, outcome = row
        error_type = (task.error or {}).get("type")
        is_own = _is_own(caller, task)
        found = verdict(task.state, task.lease, key[1], outcome, error_type, is_own=is_own)
        return KnownTask(task) if found is Verdict.HELD else found


def _is_own(caller: Caller, task: TaskDefinition) -> bool:
    return bool(task.boot_id) and caller.token.boot_of(task.runner_id) == task.boot_id


def _repeated(key: Key, found: Verdict, expected: Verdict) -> Verdict:
    if found is Verdict.LOST:
        message = f"lease {key[1]} of task {key[0]} is not held by a server of this token"
        raise Refused("lease_lost", message)
    if found is not expected:
        raise Refused("already_reported", f"lease {key[1]} of task {key[0]} has {found}")
    return found
