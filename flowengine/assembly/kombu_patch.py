"""Keep a worker alive that loses its Redis.

Celery 5.7 closes the connection before it gives back the messages it has reserved. Kombu's
Redis transport then asks a transport without a connection for its address, and the error
that comes of it, an AttributeError, ends the worker: any restart of Redis may take the
whole fleet along. Told that the connection is lost, which is true, Celery reconnects. The
messages concerned are bells, and are rung again.
"""

from __future__ import annotations

import functools
from typing import Any


def patch_kombu_redis() -> None:
    """Have kombu say that the connection is lost. Doing so twice is once."""
    try:
        from kombu.transport.redis import Channel
        from redis.exceptions import ConnectionError
    except ImportError:
        return  # nobody can have a Redis here
    address = getattr(Channel, "_connparams", None)
    if address is None or hasattr(address, "__wrapped__"):
        return

    @functools.wraps(address)
    def address_if_connected(channel: Any, *args: Any, **kwargs: Any) -> Any:
        if channel.connection.client is None:
            raise ConnectionError("the connection to Redis was closed")
        return address(channel, *args, **kwargs)

    Channel._connparams = address_if_connected  # type: ignore[method-assign, assignment]
