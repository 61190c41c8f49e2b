"""A proxy that cuts connections: all at once, or one after a given number of bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Proxy:
    """Forwards to a server of this machine, and cuts connections as a test wants it."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        #: Bytes of responses that are still forwarded; None: no limit.
        self.left: int | None = None
        #: Whether a connection was cut since `cut_after`.
        self.has_cut = False
        self._is_refusing = False
        self._clients: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def cut_after(self, count: int) -> None:
        self.left, self.has_cut = count, False

    def refuse(self) -> None:
        """Cut all connections, and every new one, until `accept`."""
        self._is_refusing = True
        for client in list(self._clients):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def accept(self) -> None:
        self._is_refusing = False

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_refusing:
                    client.close()
                    continue
                self._clients.add(client)
                server = socket.create_connection(("127.0.0.1", self._upstream))
                threading.Thread(
                    target=self._forward_requests, args=(client, server), daemon=True
                ).start()
                threading.Thread(
                    target=self._forward_responses, args=(client, server), daemon=True
                ).start()

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _forward_responses(self, client: socket.socket, server: socket.socket) -> None:
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
        self._clients.discard(client)
