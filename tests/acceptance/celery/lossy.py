"""Makes a worker lose, duplicate and reorder the messages it sends to Redis.

Imported by a worker together with its facets.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from kombu.transport.redis import Channel

_DROP, _DUPLICATE, _DELAY = map(float, os.environ.get("LOSSY_SHARES", "0.3,0.3,0.2").split(","))
_put = Channel._put
_waiting: list[tuple[str, Any]] = []


def _lots() -> random.Random:
    """The random numbers of this process: a forked child must not draw those of its parent."""
    global _drawn, _drawer
    if _drawer != os.getpid():
        _drawn = random.Random(f"{os.environ['LOSSY_SEED']}-{os.getpid()}")
        _drawer = os.getpid()
        _waiting.clear()
    return _drawn


_drawn, _drawer = random.Random(), 0


def _put_or_not(channel: Any, queue: str, message: Any, **options: Any) -> None:
    lot = _lots().random()
    if lot < _DROP:
        fate = "lost"
    elif lot < _DROP + _DUPLICATE:
        fate = "duplicated"
        _put(channel, queue, message, **options)
        _put(channel, queue, message, **options)
    elif lot < _DROP + _DUPLICATE + _DELAY:
        fate = "delayed"
        _waiting.append((queue, message))
        return _note(fate)
    else:
        fate = "sent"
        _put(channel, queue, message, **options)
    while _waiting:
        _put(channel, *_waiting.pop())
    return _note(fate)


def _note(fate: str) -> None:
    with (Path(os.environ["TRACES"]) / f"messages-{os.getpid()}").open("a") as file:
        file.write(f"{fate}\n")


Channel._put = _put_or_not
