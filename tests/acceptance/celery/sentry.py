"""A server that takes the events of Sentry's SDK."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Sentry:
    """Keeps each event as its transaction, type of error and task id."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        sentry = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                sentry.take(body)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.dsn = f"http://key@127.0.0.1:{self._server.server_port}/1"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, body: bytes) -> None:
        """Keep the events of an envelope: a line of headers, then a line before each item."""
        lines = body.split(b"\n")
        for header, item in zip(lines[1::2], lines[2::2], strict=False):
            if header and json.loads(header).get("type") == "event":
                self.events.append(json.loads(item))

    def errors(self) -> set[tuple[str, str]]:
        """The task and the type of each error."""
        return {
            (event.get("transaction", ""), value["type"])
            for event in list(self.events)
            for value in event.get("exception", {}).get("values", ())
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
