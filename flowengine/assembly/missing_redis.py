"""The transport that kombu finds for Redis in an installation without the package redis.

Kombu's own module ends there with `'NoneType' object has no attribute 'Redis'`.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES

from flowengine.errors import MissingExtra

_ALIASES = ("redis", "rediss", "sentinel")
_MISSING = f"{__name__}:Transport"


def name_missing_redis() -> None:
    """Have kombu name the extra, where it would need the package and does not find it."""
    if find_spec("redis") is None:
        TRANSPORT_ALIASES.update(dict.fromkeys(_ALIASES, _MISSING))


def refuse_missing_redis(app: Celery) -> None:
    """End a worker or a beat that cannot reach its broker, in a sentence."""
    if not {"worker", "beat"} & set(sys.argv[1:]):
        return  # others read the database, and a start is stored
    if TRANSPORT_ALIASES.get(str(app.conf.broker_url).partition(":")[0]) == _MISSING:
        raise SystemExit(f"Error: {_problem()}")


def __getattr__(name: str) -> None:
    if name == "Transport":
        raise _problem()
    raise AttributeError(name)


def _problem() -> MissingExtra:
    return MissingExtra("a broker at redis://", "redis", "redis")
