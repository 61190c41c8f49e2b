"""Connections to a PostgreSQL server."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DisconnectionError

from flowengine.errors import StoreError

_IDLE_LIMIT = 30.0  #: seconds that a transaction may be idle
#: Key in a connection's info: the statements prepared on it, by text.
PREPARED = "flowengine_prepared"
PING_AFTER = 1.0  #: seconds after which an unused connection is pinged before it is used


def postgres_engine(url: str, pinging: threading.local) -> Engine:
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    try:
        # Without a reset: every transaction that begins here also ends here.
        engine = create_engine(parsed, pool_size=16, max_overflow=16, pool_reset_on_return=None)
    except ModuleNotFoundError as missing:
        raise StoreError(
            f"PostgreSQL needs the driver {missing.name!r}: pip install 'flowengine[postgres]'"
        ) from missing

    @event.listens_for(engine, "connect")
    def _prepare(raw: Any, _record: object) -> None:
        raw.autocommit = True  # transactions begin below
        # A process that is suspended inside a transaction keeps its locks, and so blocks a run or
        # the watchdog. The server ends such a transaction.
        raw.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_LIMIT * 1000:.0f}")
        # Every repeated query has an index. A generic plan that was made while the tables were
        # tiny would scan them for ever.
        raw.execute("SET enable_seqscan = off; SET enable_hashjoin = off")
        raw.execute("SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan")
        # Compiling a statement with a wrong estimate takes a tenth of a second.
        raw.execute("SET jit = off")
        raw.prepare_threshold = 1

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    @event.listens_for(engine, "rollback")
    def _forget_prepared(connection: Connection) -> None:
        # psycopg sends DEALLOCATE ALL after a ROLLBACK.
        if not connection.invalidated:
            connection.info.pop(PREPARED, None)

    @event.listens_for(engine, "checkin")
    def _used(_raw: Any, record: Any) -> None:
        record.info["used"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _ping(raw: Any, record: Any, _proxy: object) -> None:
        # The server may have restarted since the last use; a reader should not see an error for
        # that. For a single statement a ping costs as much as the statement, so a connection that
        # was used within the last second is trusted.
        trusted = PING_AFTER if getattr(pinging, "is_off", False) else 0.0
        if time.monotonic() - record.info.get("used", math.inf) >= trusted:
            try:
                engine.dialect.do_ping(raw)
            except Exception as gone:
                raise DisconnectionError("the connection is gone") from gone

    return engine
