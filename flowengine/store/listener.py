"""Hear from PostgreSQL which runs have ended, whoever ended them."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable

from sqlalchemy import Connection, text

from flowengine.store.database import Database

CHANNEL = "flowengine_run"
_NOTIFY = text(f"SELECT pg_notify('{CHANNEL}', :run)")
log = logging.getLogger(__name__)


def announce(connection: Connection, run_id: str) -> None:
    """Tell all listeners, when this transaction commits, that the run has ended."""
    if connection.dialect.name == "postgresql":
        connection.execute(_NOTIFY, {"run": run_id})


class Listener:
    """A thread with a connection of its own that passes on what it hears.

    It is a convenience: whoever waits also looks by itself from time to time, so a lost
    connection costs time and nothing else.
    """

    def __init__(self, database: Database, hear: Callable[[str], None]) -> None:
        self._database, self._hear = database, hear
        self._stop = threading.Event()
        self._woken, self._waker = socket.socketpair()
        self._thread = threading.Thread(
            target=self._listen, name="flowengine-listener", daemon=True
        )
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                self._hear_all()
            except Exception:  # the server went away; the waiters look by themselves meanwhile
                log.debug("lost the connection that listens for runs", exc_info=True)
                self._stop.wait(1.0)

    def _hear_all(self) -> None:
        raw = self._database.engine.raw_connection()
        try:
            connection = raw.driver_connection
            assert connection is not None
            connection.rollback()
            connection.autocommit = True
            connection.execute(f"LISTEN {CHANNEL}")
            with selectors.DefaultSelector() as either:
                either.register(connection.fileno(), selectors.EVENT_READ)
                either.register(self._woken, selectors.EVENT_READ)
                while not self._stop.is_set():
                    connection.pgconn.consume_input()
                    while note := connection.pgconn.notifies():
                        self._hear(note.extra.decode())
                    either.select()
        finally:
            raw.invalidate()  # it has changed its manners and must not go back to the pool

    def stop(self) -> None:
        self._stop.set()
        self._waker.send(b"!")
        self._thread.join(timeout=2)
        self._woken.close()
        self._waker.close()
