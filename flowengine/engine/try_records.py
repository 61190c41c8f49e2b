"""The record of a try: who ran it, how it ended, and why it waited before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from flowengine.evaluator.admission import durations, kind_of, read_keys
from flowengine.evaluator.states import TaskState
from flowengine.program.nodes import Json
from flowengine.store import Session
from flowengine.store.admission import StoredQueue
from flowengine.store.shown_values import shown_error, shown_value
from flowengine.store.tasks import StoredTry


@dataclass(frozen=True, slots=True)
class Waited:
    """Milliseconds from the creation of a try to its start, by reason. Their sum is that time."""

    backoff: int = 0  #: after the failure of the try before
    hold: int = 0  #: its run was held
    limit: int = 0
    rate: int = 0
    circuit: int = 0  #: its circuit breaker was open
    #: The code of its durable function did not fit the record, or another agent had its lock.
    parked: int = 0
    queue: int = 0  #: it could be claimed, and no worker was free

    def __add__(self, other: Waited) -> Waited:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Waited(**sums)


NOT_WAITED = Waited()


@dataclass(frozen=True, slots=True)
class TryInfo:
    """One try of a step."""

    number: int
    losses: int  #: tries before it that ended with the death of their worker
    state: str
    outcome: str | None  #: succeeded, failed, final, lost, handed; None: it has not ended
    error: dict[str, Any] | None  #: type, message, traceback
    server: str | None  #: the id of the server that ran it
    pid: int | None
    created: int
    started: int | None
    ended: int | None
    waited: Waited
    progress: Json = None  #: as its code reported it last


def try_info(row: StoredTry, queues: Mapping[str, StoredQueue], now: int) -> TryInfo:
    """Return a try; `queues` are those in which tasks wait now."""
    return TryInfo(
        number=row.try_number,
        losses=row.losses,
        state=row.state,
        outcome=row.outcome,
        error=shown_error(row.error, ""),
        server=row.server_id,
        pid=row.pid,
        created=row.created,
        started=_started(row),
        ended=row.updated if row.state in TaskState.FINAL else None,
        waited=_waited(row, queues, now),
        progress=shown_value(row.progress),
    )


def _started(row: StoredTry) -> int | None:
    """Return when a try began; None if it waits, although it may have been begun and released."""
    is_begun = row.state in TaskState.FINAL or row.state == TaskState.RUNNING
    return row.started if is_begun else None


def _waited(row: StoredTry, queues: Mapping[str, StoredQueue], now: int) -> Waited:
    until = _started(row)
    if until is None:
        until = row.updated if row.state in TaskState.FINAL else now
    left = max(0, until - row.created)

    def part(milliseconds: int) -> int:
        nonlocal left
        taken = min(max(0, milliseconds), left)
        left -= taken
        return taken

    first_due = row.created + row.waited_backoff if row.waited_backoff is not None else row.due
    backoff = part(first_due - row.created)
    held = part((row.waited_hold or 0) + (now - row.updated if row.state == TaskState.HELD else 0))
    limit, rate = row.waited_limit or 0, row.waited_rate or 0
    if row.state == TaskState.WAITING:
        queue = queues.get(row.queue or "")
        first = kind_of(read_keys(row.limits)[0].name)
        since = row.created + backoff + held
        limit, rate = durations(since, max(now, since), queue.switches if queue else [], first)
    limit, rate = part(limit), part(rate)
    # The time until a parked task is due again was added when it was parked.
    ahead = max(0, row.due - until) if row.waited_circuit else 0
    parked = part((row.waited_circuit or 0) - ahead)
    circuit = parked if row.limit_key else 0
    return Waited(backoff, held, limit, rate, circuit, parked - circuit, queue=left)


def waiting_queues(session: Session, rows: Iterable[StoredTry]) -> dict[str, StoredQueue]:
    """Return the queues in which these tries wait."""
    ids = {row.queue for row in rows if row.queue and row.state == TaskState.WAITING}
    return session.admission.queues(ids) if ids else {}
