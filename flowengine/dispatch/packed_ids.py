"""Pack the task ids of a message.

Ids of one run have a common prefix and end with twenty hexadecimal digits. Packed, a message of
125 ids, with all that Celery adds, stays below 4 KiB.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence

_BYTES = 10  # that distinguish the tasks of a run


def packed(task_ids: Sequence[str]) -> str:
    """Encode ids of tasks of one run as one text."""
    length = len(task_ids[0]) - 2 * _BYTES
    prefix = task_ids[0][:length]
    assert all(task_id.startswith(prefix) for task_id in task_ids), "of one run"
    suffixes = bytes.fromhex("".join(task_id[length:] for task_id in task_ids))
    return f"{prefix}:{b64encode(suffixes).decode()}"


def unpacked(text: str) -> list[str]:
    """Decode them."""
    prefix, _, encoded = text.rpartition(":")
    suffixes = b64decode(encoded)
    places = range(0, len(suffixes), _BYTES)
    return [prefix + suffixes[at : at + _BYTES].hex() for at in places]
