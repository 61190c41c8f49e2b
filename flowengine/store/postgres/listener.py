"""Listen for ended runs, or for due tasks, whichever process wrote them (PostgreSQL's LISTEN)."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable

from sqlalchemy import Engine

from flowengine.log_filter import safe_logger

_RECONNECT_SECONDS = 1.0
log = safe_logger(__name__)


class Listener:
    """A thread with its own connection that calls `on_note` with the text of each notification.

    Notifications are lost while it is not connected: `on_connect` is called after each LISTEN,
    so that callers who wait check the rows again.
    """

    def __init__(
        self,
        engine: Engine,
        channel: str,
        on_note: Callable[[str], object],
        on_connect: Callable[[], object],
    ) -> None:
        self._engine, self._channel = engine, channel
        self._on_note, self._on_connect = on_note, on_connect
        self.is_listening = False
        self._stop = threading.Event()
        self._woken, self._waker = socket.socketpair()
        self._thread = threading.Thread(
            target=self._listen, name="flowengine-listener", daemon=True
        )
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                self._receive()
            except Exception:
                log.debug("the connection that listens on %s is lost", self._channel, exc_info=True)
                self._stop.wait(_RECONNECT_SECONDS)

    def _receive(self) -> None:
        raw = self._engine.raw_connection()
        try:
            connection = raw.driver_connection
            assert connection is not None
            connection.rollback()
            connection.autocommit = True
            connection.execute(f"LISTEN {self._channel}")
            self.is_listening = True
            self._on_connect()
            with selectors.DefaultSelector() as selector:
                selector.register(connection.fileno(), selectors.EVENT_READ)
                selector.register(self._woken, selectors.EVENT_READ)
                while not self._stop.is_set():
                    connection.pgconn.consume_input()
                    while note := connection.pgconn.notifies():
                        self._on_note(note.extra.decode())
                    selector.select()
        finally:
            self.is_listening = False
            raw.invalidate()  # a listening connection must not return to the pool

    def stop(self) -> None:
        """End the thread. Idempotent."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._waker.send(b"!")
        self._thread.join(timeout=2)
        self._woken.close()
        self._waker.close()
