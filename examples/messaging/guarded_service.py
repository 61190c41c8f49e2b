"""A circuit breaker around an HTTP service that fails and recovers.

    FLOWENGINE_EXAMPLE_REDIS=redis://localhost python examples/messaging/guarded_service.py

After three consecutive failures the breaker opens: no process calls the service. After half a
second it permits probes, and two successful ones close it.
"""

import os
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from redis import Redis

from flowengine.messaging import (
    CircuitBreakerConfig,
    CircuitBreakerOpenError,
    SyncCircuitBreaker,
)

CONFIG = CircuitBreakerConfig(
    failure_threshold=3, timeout_seconds=0.5, recovery_timeout_seconds=30, success_threshold=2
)


class Weather(BaseHTTPRequestHandler):
    works = True
    calls = 0

    def do_GET(self) -> None:
        type(self).calls += 1
        if self.path == "/nowhere":
            self.send_error(404)
        elif self.works:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"rain")
        else:
            self.send_error(503)

    def log_message(self, format: str, *args: object) -> None:
        pass


def fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            raise LookupError(url) from None  # the caller's mistake, not the service's
        raise ConnectionError(f"{url} answered {error.code}") from None


def main() -> None:
    url = os.environ.get("FLOWENGINE_EXAMPLE_REDIS", "redis://localhost:6379/0")
    with Redis.from_url(url) as redis, ThreadingHTTPServer(("127.0.0.1", 0), Weather) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        service = f"http://127.0.0.1:{server.server_port}"
        breaker = SyncCircuitBreaker(
            redis, "weather", CONFIG, key_prefix="guard", failure_on=(OSError,)
        )
        breaker.reset()
        print("the service says", breaker.call(fetch, f"{service}/today"))

        Weather.works, refused, wait = False, 0, 0.0
        for _ in range(10):
            try:
                breaker.call(fetch, f"{service}/today")
            except ConnectionError:
                pass
            except CircuitBreakerOpenError as error:
                refused += 1
                wait = error.retry_after
        print(f"down: {Weather.calls - 1} calls were made, {refused} were refused")

        Weather.works = True
        time.sleep(wait)
        for _ in range(2):
            breaker.call(fetch, f"{service}/today")
        print(f"up again: the breaker is {breaker.snapshot().state}")
        try:
            breaker.call(fetch, f"{service}/nowhere")
        except LookupError:
            print(f"a wrong address is not a failure: {breaker.snapshot().failures} counted")
        server.shutdown()


if __name__ == "__main__":
    main()
