"""Pack the task ids of a message.

Ids of one run have a common prefix and end with twenty hexadecimal digits. Packed, a message of
125 ids, with all that Celery adds, stays below 4 KiB.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence

_BYTES = 10  # that distinguish the tasks of a run
#: Most tasks in one message: it stays below 4 KiB.
MOST = 125


def packed(task_ids: Sequence[str]) -> str:
    """Encode ids of tasks of one run as one text."""
    length = len(task_ids[0]) - 2 * _BYTES
    prefix = task_ids[0][:length]
    assert all(task_id.startswith(prefix) for task_id in task_ids), "of one run"
    suffixes = bytes.fromhex("".join(task_id[length:] for task_id in task_ids))
    return f"{prefix}:{b64encode(suffixes).decode()}"


def unpacked(text: str) -> list[str]:
    """Decode them; raises ValueError for a text that `packed` does not make."""
    prefix, _, encoded = text.rpartition(":")
    suffixes = b64decode(encoded, validate=True)
    if len(suffixes) % _BYTES or len(suffixes) > MOST * _BYTES or len(prefix) > 64:
        raise ValueError(f"no ids of at most {MOST} tasks: {text[:40]!r}")
    places = range(0, len(suffixes), _BYTES)
    return [prefix + suffixes[at : at + _BYTES].hex() for at in places]
