"""A connection that breaks where the test says."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Proxy:
    """Stands before Redis, and closes a connection after so many bytes of an answer."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        #: How many more bytes the client gets to see; None: all of them.
        self.left: int | None = None
        #: Whether a connection was cut since `left` was set.
        self.has_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def cut_after(self, count: int) -> None:
        self.left, self.has_cut = count, False

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                threading.Thread(target=self._ask, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answer, args=(client, server), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError), client, server:
            while data := server.recv(65536):
                if self.left is not None:
                    seen, self.left = data[: self.left], max(self.left - len(data), 0)
                    client.sendall(seen)
                    if len(seen) < len(data):
                        self.has_cut, self.left = True, None
                        client.shutdown(socket.SHUT_RDWR)
                        return
                else:
                    client.sendall(data)
