"""Task ids in a message, in little room.

Ids of one run begin alike, and end with twenty hexadecimal digits. A message of a hundred and
twenty-five, with all that Celery adds, stays below 4 KiB this way.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence

_BYTES = 10  # that tell the tasks of a run apart


def packed(task_ids: Sequence[str]) -> str:
    """Write ids of tasks of one run as one text."""
    length = len(task_ids[0]) - 2 * _BYTES
    alike = task_ids[0][:length]
    assert all(task_id.startswith(alike) for task_id in task_ids), "of one run"
    told_apart = bytes.fromhex("".join(task_id[length:] for task_id in task_ids))
    return f"{alike}:{b64encode(told_apart).decode()}"


def unpacked(parcel: str) -> list[str]:
    """Read them again."""
    alike, _, rest = parcel.rpartition(":")
    told_apart = b64decode(rest)
    places = range(0, len(told_apart), _BYTES)
    return [alike + told_apart[at : at + _BYTES].hex() for at in places]
