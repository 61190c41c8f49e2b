"""Outcomes of runs as signed requests, and as Celery signals.

    python examples/webhook.py

The receiver is a small HTTP server in this process. It refuses the first request: the delivery is
repeated. In production the receiver is another service, and every worker has the settings.
"""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flowengine import event_facet, webhooks, workflow

KEY = "an example of a key: openssl rand -hex 32"
received: list[str] = []
everything = threading.Event()


class Receiver(BaseHTTPRequestHandler):
    refusals = 1

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_ours = webhooks.verify(body, self.headers[webhooks.HEADER], [KEY])
        if not is_ours or Receiver.refusals:
            Receiver.refusals = 0
            self.send_error(503)
            return
        delivery = json.loads(body)
        for outcome in delivery["outcomes"]:
            error = outcome["error"]["message"] if outcome["error"] else "well"
            received.append(f"{outcome['event']} {outcome['path']}: {error}")
        self.send_response(204)
        self.end_headers()
        if len(received) >= 3:
            everything.set()

    def log_message(self, format: str, *args: object) -> None:
        return None


@event_facet
def charge(cents: int) -> str:
    if cents > 1000:
        raise ValueError("no money left")
    return f"paid {cents}"


@workflow
def order(cents: int) -> str:
    return charge(cents)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["FLOWENGINE_WEBHOOK_URL"] = f"http://127.0.0.1:{server.server_address[1]}/"
    os.environ["FLOWENGINE_WEBHOOK_KEYS"] = KEY
    os.environ["FLOWENGINE_OUTCOME_SIGNALS"] = "on"

    from flowengine.signals import run_failed

    signalled = threading.Event()

    @run_failed.connect
    def on_failure(sender: str, run_id: str, outcome: Any, **_: Any) -> None:
        signalled.set()

    order.start(300).result(timeout=60)
    order.start(3000)
    assert everything.wait(60)
    assert signalled.wait(60)
    print("\n".join(sorted(received)))
    print("the receiver of the signal was called")
    server.shutdown()
    server.server_close()
