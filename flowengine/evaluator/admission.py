"""Admission: which of the tasks that wait for a limit or a rate may be claimed now.

A task with keys is created in the state `waiting`. Tasks with the same keys, of the same tenant,
wait in one queue, first in, first out. Queues that need the same key are served in turn: the one
that was served least recently comes first, so that none starves.

A task needs a slot of each of its keys, and takes all of them or none. A queue that was passed over
`MAX_PASSES` times, because its keys were never free at the same moment, reserves them instead: its
first task takes free slots in the order of their keys, and keeps them. The order is the same for
all queues, so no two of them wait for each other.

Pure: slots, queues and the time are arguments. `store.admission` reads and writes them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowengine.evaluator.records import derived_id
from flowengine.program.event_options import EventOptions
from flowengine.program.limit_keys import KeyScope, rendered
from flowengine.program.option_checks import MAX_COUNT

MAX_PASSES = 8
_MAX_SWITCHES = 50  # of one queue; the oldest are merged


class StatedKey(NamedTuple):
    """A key of a task, with the number that the program of its run states."""

    name: str
    number: int  #: of slots
    per: int | None  #: milliseconds; None: a limit
    since: int  #: when the run was started: the number of the latest run counts

    @property
    def is_rate(self) -> bool:
        return self.per is not None


def stated_keys(
    options: EventOptions, value_of: Callable[[str], Any], run: KeyScope, since: int
) -> list[StatedKey]:
    """Return the keys of a step, sorted: the order in which they are locked and reserved.

    Raises KeyError or TypeError for a key without a value.
    """
    keys = [
        StatedKey(f"limit:{rendered(limit.key, value_of, run)}", limit.count, None, since)
        for limit in options.limit
    ]
    for rate in options.rate:
        per = rate.per if isinstance(rate.per, int | float) else rate.per.total_seconds()
        name = f"rate:{rendered(rate.key, value_of, run)}"
        keys.append(StatedKey(name, rate.count, max(1, round(per * 1000)), since))
    return sorted(keys)


def write_keys(keys: Iterable[StatedKey]) -> str:
    return json.dumps([list(key) for key in keys], separators=(",", ":"))


def read_keys(text: str | None) -> list[StatedKey]:
    """Return written keys; numbers that earlier versions did not check are cut to the limit."""
    if not text:
        return []
    keys = [StatedKey(*key) for key in json.loads(text)]
    return [key._replace(number=min(key.number, MAX_COUNT)) for key in keys]


def queue_id(tenant: str, keys: Iterable[StatedKey]) -> str:
    """Return the id of the queue in which tasks with these keys wait."""
    return derived_id("queue", json.dumps([tenant, *(key.name for key in keys)]))


# --- the decision ---


@dataclass
class WaitQueue:
    """Tasks that wait for the same keys."""

    id: str
    keys: tuple[str, ...]  #: sorted
    turn: int  #: the lower, the longer ago it was served
    tasks: deque[str]  #: the first of them that are due
    reserved: frozenset[str] = frozenset()  #: keys of which the first task has a slot
    passed: int = 0  #: how often it was passed over


@dataclass
class Admission:
    """The admitted tasks, and the limits that the others wait for."""

    admitted: list[tuple[str, str, list[str]]] = field(default_factory=list)
    """Task, queue and the keys of the new slots, in order."""
    reserved: list[tuple[str, str]] = field(default_factory=list)
    """Task and key of slots that a waiting task takes."""
    blocked: dict[str, str] = field(default_factory=dict)  #: by queue: the key without a free slot
    passed: dict[str, int] = field(default_factory=dict)  #: by queue


def decide(queues: Iterable[WaitQueue], free: Mapping[str, int]) -> Admission:
    """Admit tasks as long as all their keys have free slots."""
    left, found = dict(free), Admission()
    order = deque(sorted(queues, key=lambda queue: (queue.turn, queue.id)))
    while order:
        queue = order.popleft()
        found.passed.setdefault(queue.id, queue.passed)
        if not queue.tasks:
            continue
        needed = [key for key in queue.keys if key not in queue.reserved]
        full = [key for key in needed if left[key] <= 0]
        if full:
            found.blocked[queue.id] = full[0]
            if len(full) < len(needed):
                _pass_over(queue, needed, left, found)
            continue
        task = queue.tasks.popleft()
        for key in needed:
            left[key] -= 1
        found.admitted.append((task, queue.id, needed))
        found.passed[queue.id], queue.reserved = 0, frozenset()
        order.append(queue)
    return found


def _pass_over(
    queue: WaitQueue, needed: Sequence[str], left: dict[str, int], found: Admission
) -> None:
    """Count that a queue had to leave free slots to others; after that too often, reserve them."""
    found.passed[queue.id] += 1
    if found.passed[queue.id] <= MAX_PASSES:
        return
    for key in needed:
        if left[key] <= 0:
            return  # in order: it waits for this one before it takes the next
        left[key] -= 1
        found.reserved.append((queue.tasks[0], key))


# --- why a task waited ---

Switches = list[list[Any]]  #: [time, "limit" or "rate"]: since when a queue waits for which


def kind_of(key: str) -> str:
    return key.partition(":")[0]


def switched(switches: Switches, now: int, key: str) -> Switches:
    """Return the switches of a queue that waits for this key from now on."""
    kind = kind_of(key)
    if switches and switches[-1][1] == kind:
        return switches
    return [*switches, [now, kind]][-_MAX_SWITCHES:]


def durations(ready: int, now: int, switches: Switches, first_kind: str) -> tuple[int, int]:
    """Return how long a task waited for limits and for rates, in milliseconds."""
    waited = {"limit": 0, "rate": 0}
    kind, at = switches[0][1] if switches else first_kind, ready
    for switch, following in [*switches, (now, "")]:
        until = min(max(switch, at), now)
        waited[kind] += until - at
        at, kind = until, following
    return waited["limit"], waited["rate"]
