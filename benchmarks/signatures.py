"""Measures what a signed message costs: to sign it, to verify it, and to send it.

Signing and verifying are timed alone, in microseconds of CPU time. Sending is timed in the same
way, to a Redis of its own, with and without a key in turns; the cost is the median of the
differences of two neighbouring slices. With `cryptography` installed, Celery's `auth` serializer
is measured too, with a key of 2048 bits.

    PYTHONPATH=. python benchmarks/signatures.py
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery
from rich.console import Console
from rich.table import Table

from flowengine.dispatch import CeleryNotifier
from flowengine.dispatch.notifier import DRAIN
from flowengine.message_keys import HEADER, MessageKeys
from tests.servers import RedisServer

KEYS = MessageKeys("0123456789abcdef" * 4)
WAKE_UP = ("default", 16)
#: A start with some 1,000 bytes of inputs.
START = ("shop.order", {"customer": "ada@example.org", "goods": [f"cup {n}" for n in range(100)]})
CALLS, ROUNDS, SLICE = 20_000, 41, 100


def microseconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """The CPU time of one call: the median of fifty series."""
    series = []
    for _ in range(50):
        began = time.thread_time()
        for _ in range(calls // 50):
            call()
        series.append((time.thread_time() - began) / (calls // 50))
    return statistics.median(series) * 1e6


def hmac_costs() -> dict[str, float]:
    id_, later = "8204c470-fe8f-4a7f-8cc0-efa42b3307db", round(time.time()) + 3600
    wake_up = KEYS.headers(DRAIN, WAKE_UP)[HEADER]
    start = KEYS.headers("flowengine.execute", START, message_id=id_, expires=later)[HEADER]
    return {
        "sign a wake-up": microseconds(lambda: KEYS.headers(DRAIN, WAKE_UP)),
        "verify a wake-up": microseconds(lambda: KEYS.problem(wake_up, DRAIN, WAKE_UP, {})),
        "sign a start of 1 KB": microseconds(
            lambda: KEYS.headers("flowengine.execute", START, message_id=id_, expires=later)
        ),
        "verify a start of 1 KB": microseconds(
            lambda: KEYS.problem(start, "flowengine.execute", START, {}, id_, time.time())
        ),
    }


def sending(url: str) -> tuple[float, float]:
    """Microseconds to send a wake-up without a key, and the further ones with a key."""
    app = Celery("signing", broker=url, set_as_current=False)
    plain, signed = (
        CeleryNotifier(app, most=10**9, control_queue="control", keys=keys)
        for keys in (MessageKeys(), KEYS)
    )

    def timed(notifier: CeleryNotifier) -> float:
        began = time.thread_time()
        for _ in range(SLICE):
            notifier.repeat({"default": 16})
        return (time.thread_time() - began) / SLICE * 1e6

    for notifier in (plain, signed):
        timed(notifier)
    pairs = [(timed(plain), timed(signed)) for _ in range(ROUNDS)]
    app.close()
    base = statistics.median(without for without, _ in pairs)
    return base, statistics.median(with_key - without for without, with_key in pairs)


def auth_costs() -> dict[str, float]:
    """The same for Celery's serializer, which signs and encodes the body."""
    from celery.security.certificate import Certificate, FSCertStore
    from celery.security.key import PrivateKey
    from celery.security.serialization import SecureSerializer

    with tempfile.TemporaryDirectory() as name:
        key, certificate = Path(name) / "key", Path(name) / "c.crt"
        command = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=a"]
        command += ["-days", "2", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True)
        auth = SecureSerializer(
            PrivateKey(key.read_text()),
            Certificate(certificate.read_text()),
            FSCertStore(str(certificate)),
        )
    body: Any = (WAKE_UP, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})
    text = auth.serialize(body)
    return {
        "sign a wake-up": microseconds(lambda: auth.serialize(body), 500),
        "verify a wake-up": microseconds(lambda: auth.deserialize(text), 2_000),
    }


def main() -> None:
    table = Table("message", "HMAC, µs", "Celery's auth, µs")
    auth = auth_costs() if importlib.util.find_spec("cryptography") else {}
    for name, cost in hmac_costs().items():
        table.add_row(name, f"{cost:.1f}", f"{auth[name]:.0f}" if name in auth else "-")
    redis = RedisServer()
    base, more = sending(redis.url)
    redis.stop()
    table.add_row("send a wake-up without a key", f"{base:.0f}", "")
    table.add_row("the same with a key: more", f"{more:+.1f}", "")
    Console().print(table)


if __name__ == "__main__":
    main()
