"""Random requests to the pages of a real Flower: each is answered soon, none with a 500."""

from __future__ import annotations

import http.client
import string
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from urllib.parse import quote_from_bytes, urlsplit

import pytest

from tests.acceptance.test_flower import Flower, Runs, running
from tests.acceptance.test_flower import runs as runs  # a fixture

SECONDS = 5.0  #: that an answer may take
PATHS = (
    *("/workflows", "/workflows", "/api/workflows", "/api/workflows"),
    *("/agents", "/agents/turns", "/api/agents", "/api/agents/turns"),
)
NAMES = (
    *("state", "workflow", "before", "limit", "tenant", "x", "state[]", "", "limit=", "%00"),
    *("agents", "agent", "project", "cursor"),
)
ODD = (
    *("", "0", "1", "-1", "00000000100000000000", "9" * 20, "9" * 5_000, "1e3", "0x10", "٣", "²"),
    *("NaN", "Infinity", "null", "None", "true", "[]", "{}", "\x00", "\n", "\r\nX: y", "%", "_"),
    *("RUNNING", "running", "FAILED", "DONE", "' OR 1=1 --", '"; DROP TABLE flowengine_run', "\\"),
    *(
        "<script>",
        "{{ 1 }}",
        "{% raw %}",
        "../..",
        "..%2f..",
        "\ud800",
        "\U0001f600" * 300,
        "a" * 300,
    ),
)


class Requests:
    """Requests drawn from a seed."""

    def __init__(self, seed: int, runs: Runs) -> None:
        self._random = Random(seed)
        self._ids = (runs.completed, runs.failed, runs.wide, runs.waiting)

    def target(self) -> str:
        """A path with a query; the path is that of a page, or nearly."""
        draw = self._random
        path = draw.choice(PATHS)
        if draw.random() < 0.4:
            path += "/" + draw.choice([draw.choice(self._ids), self._value(), self._value()])
        if draw.random() < 0.1:
            path += draw.choice(["/", "//", "/.", ";a=b", "?", "#"])
        count = draw.choice([0, 0, 1, 1, 2, 3, 30])
        pairs = [f"{draw.choice(NAMES)}={self._value()}" for _ in range(count)]
        return path + ("?" + "&".join(pairs) if pairs else "")

    def _value(self) -> str:
        draw = self._random
        kind = draw.randrange(5)
        if kind == 0:
            value = bytes(draw.randrange(256) for _ in range(draw.randrange(12)))
        elif kind == 1:
            text = "".join(draw.choice(string.printable) for _ in range(draw.randrange(40)))
            value = text.encode()
        elif kind == 2:
            value = draw.choice(self._ids)[: draw.randrange(33)].encode()
        else:
            value = draw.choice(ODD).encode("utf-8", "surrogatepass")
        return quote_from_bytes(value)


@pytest.fixture(scope="module")
def flower(runs: Runs) -> Iterator[Flower]:
    with running("flowengine", runs.url, FLOWER_UNAUTHENTICATED_API="true") as flower:
        yield flower


def memory_of(flower: Flower) -> int:
    """The resident memory of Flower's process, in bytes."""
    address = urlsplit(flower.url)
    inodes = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{address.port:04X}")
    }
    for process in Path("/proc").glob("[0-9]*"):
        try:
            sockets = {file.readlink().name for file in (process / "fd").iterdir()}
            if sockets & {f"socket:[{inode}]" for inode in inodes}:
                pages = int((process / "statm").read_text().split()[1])
                return pages * 4096
        except OSError:
            continue
    raise LookupError("no process listens at the address of Flower")


@pytest.mark.parametrize("count", [100, pytest.param(6_000, marks=pytest.mark.chaos)])
def test_random_requests_to_the_pages_are_answered(
    flower: Flower, runs: Runs, chaos_seed: int, count: int
) -> None:
    seed = 15 if count == 250 else chaos_seed
    requests = Requests(seed, runs)
    address = urlsplit(flower.url)
    statuses: Counter[int] = Counter()
    slowest, before = 0.0, 0
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
    for number in range(count):
        if number == count // 4:
            before = memory_of(flower)
        target = requests.target()
        began = time.monotonic()
        connection.request("GET", target)
        answer = connection.getresponse()
        body = answer.read()
        took = time.monotonic() - began
        statuses[answer.status] += 1
        slowest = max(slowest, took)
        assert answer.status < 500, f"seed {seed}, {target}: {body[:500]!r}"
        # A failed run shows the traceback of its step.
        assert answer.status == 200 or b"Traceback" not in body, f"seed {seed}, {target}"
        assert took < SECONDS, f"seed {seed}, {target}: {took:.1f} s"
    connection.close()
    growth = memory_of(flower) - before
    print(f"{count} requests, seed {seed}: {dict(statuses)}, {slowest:.2f} s, {growth:+,} bytes")
    assert statuses[200] > count // 20
    assert growth < 64 * 1024 * 1024
