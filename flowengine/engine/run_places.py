"""The places of a workflow whose open runs are limited: pure.

A run with a place has it as its singleton key, `flowengine.runs:2`: the unique index of open runs
decides between two that take one. A run that waits has the limit of its own program in the key of
its queue, `flowengine.runs/3`: it begins when fewer runs are open.
"""

from __future__ import annotations

from collections.abc import Collection

_PLACE, _QUEUE = "flowengine.runs:", "flowengine.runs/"
#: Patterns of all places, and of all queues.
PLACES, QUEUES = f"{_PLACE}%", f"{_QUEUE}%"


def queue_key(limit: int) -> str:
    return f"{_QUEUE}{limit}"


def is_of_places(key: str) -> bool:
    """Whether a key is that of a place, or of a queue for one."""
    return key.startswith((_PLACE, _QUEUE))


def limit_of(queue: str) -> int:
    """Return how many runs may be open for one that waits in this queue."""
    return int(queue.removeprefix(_QUEUE))


def free_place(queue: str, taken: Collection[str]) -> str | None:
    """Return the key of a free place for a run that waits in this queue."""
    limit = limit_of(queue)
    if len(taken) >= limit:
        return None
    # A place above the limit is that of a run whose program allowed more.
    keys = (f"{_PLACE}{number}" for number in range(1, limit + 1))
    return next((key for key in keys if key not in taken), None)
