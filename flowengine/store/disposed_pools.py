"""Connections that outlive their pool.

`Engine.dispose` closes the connections that are in the pool, and replaces the pool. A thread that
used a connection meanwhile returns it to the old pool, where nobody closes it: the server keeps its
session until the garbage collector finds the pool.
"""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import Engine, event

_HOME = "flowengine_home"  #: key in a connection's info: its process and its pool


def close_late_returns(engine: Engine) -> None:
    """Close connections that are returned after the pool they come from was disposed of."""

    @event.listens_for(engine, "connect")
    def _connected(_raw: Any, record: Any) -> None:
        record.info[_HOME] = os.getpid(), engine.pool

    @event.listens_for(engine, "checkin")
    def _returned(raw: Any, record: Any) -> None:
        if raw is None:
            return  # it was lost, and is closed
        process, pool = record.info.get(_HOME, (None, None))
        # A forked child must not close the session of its parent.
        if process == os.getpid() and pool is not engine.pool:
            record.invalidate()
