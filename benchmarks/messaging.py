"""Compares messages with Redis Streams and kombu.

The contenders use one Redis: flowengine's coordinator, a consumer group of Redis Streams over
redis-py, and kombu's simple queue. Each round runs every contender; the table has medians over the
rounds, and the median of the ratios to Streams in the same round. Each receive is verified: every
message arrives exactly once.

`streams` does the same for its user as the coordinator: the same message is sent, the same object
is received, and acknowledged messages are deleted. `bare streams` has a payload without sender,
recipient, type and id, decodes it to a dictionary, and deletes nothing.

*In slices* all contenders run in one process in turns of 20 calls; the rate is that of the median
call. On a loaded machine these ratios are the reliable ones.

    PYTHONPATH=. python benchmarks/messaging.py --messages 3000 --rounds 5

Both have fewer guarantees: no priorities, no capacity, no retries, no deduplication, and an
acknowledgement is accepted from any client. kombu has no batches.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import statistics
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import kombu
import redis
from rich.console import Console
from rich.table import Table

from flowengine.messaging import AgentId, AgentMessage, MessageType, SyncMessageCoordinator
from tests.servers import RedisServer

BATCH = 100
CONSUMERS = (1, 8)
PAYLOAD = {"customer": "ada@example.org", "items": ["kettle", "pot"], "total": 42.5}

Timed = Callable[[Callable[[], int]], int]


class Contender(ABC):
    """A queue under test."""

    name: str
    batches = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.redis = redis.Redis.from_url(url)

    def prepare(self, count: int) -> None:  # noqa: B027 - optional
        """Set up before the first send."""

    @abstractmethod
    def send(self, numbers: range) -> None:
        """Send these messages in one call."""

    @abstractmethod
    def receive(self, limit: int) -> tuple[list[int], object]:
        """Receive up to `limit` messages; their numbers, and a handle to acknowledge them."""

    @abstractmethod
    def ack(self, handle: object) -> None:
        """Acknowledge received messages."""

    def close(self) -> None:
        self.redis.close()


AGENT = AgentId(type="bench")


def message_of(number: int) -> AgentMessage:
    return AgentMessage(
        message_id=f"message-{number}",
        sender=AGENT,
        recipient=AGENT,
        message_type=MessageType.EVENT,
        payload={**PAYLOAD, "number": number},
    )


class Coordinator(Contender):
    name = "flowengine"

    def prepare(self, count: int) -> None:
        self._box().configure(queue_size=count)

    def _box(self) -> SyncMessageCoordinator:
        if not hasattr(self, "box"):
            self.box = SyncMessageCoordinator(self.redis)
        return self.box

    def send(self, numbers: range) -> None:
        messages = [message_of(number) for number in numbers]
        if len(messages) == 1:
            self._box().send_message(AGENT, AGENT, messages[0])
        else:
            self._box().send_batch(AGENT, AGENT, messages)

    def receive(self, limit: int) -> tuple[list[int], object]:
        found = self._box().receive_batch(AGENT, limit, visibility_timeout=60)
        return [one.message.payload["number"] for one in found], [one.token for one in found]

    def ack(self, handle: object) -> None:
        assert isinstance(handle, list)
        assert all(self._box().ack_batch(AGENT, handle))


class BareStreams(Contender):
    """A payload only: no sender, no type; acknowledged messages are not deleted."""

    name = "bare streams"

    def prepare(self, count: int) -> None:
        self.redis.xgroup_create("bench", "group", id="0", mkstream=True)

    def encoded(self, number: int) -> str:
        return json.dumps({**PAYLOAD, "number": number})

    def payloads(self, bodies: list[bytes]) -> list[dict[str, Any]]:
        return [json.loads(body) for body in bodies]

    def send(self, numbers: range) -> None:
        bodies = [self.encoded(number) for number in numbers]
        if len(bodies) == 1:
            self.redis.xadd("bench", {"body": bodies[0]})
            return
        with self.redis.pipeline(transaction=False) as pipeline:
            for body in bodies:
                pipeline.xadd("bench", {"body": body})
            pipeline.execute()

    def receive(self, limit: int) -> tuple[list[int], object]:
        found = self.redis.xreadgroup("group", f"{id(self)}", {"bench": ">"}, count=limit)
        entries = found[0][1] if found else []
        # Decode the whole batch first, as the coordinator does.
        payloads = self.payloads([fields[b"body"] for _, fields in entries])
        return [payload["number"] for payload in payloads], [entry for entry, _ in entries]

    def ack(self, handle: object) -> None:
        assert isinstance(handle, list)
        self.redis.xack("bench", "group", *handle)


class Streams(BareStreams):
    """The same message and object as the coordinator; acknowledged messages are deleted."""

    name = "streams"

    def encoded(self, number: int) -> str:
        return message_of(number).model_dump_json()

    def payloads(self, bodies: list[bytes]) -> list[dict[str, Any]]:
        messages = [AgentMessage.model_validate_json(body) for body in bodies]
        return [message.payload for message in messages]

    def ack(self, handle: object) -> None:
        assert isinstance(handle, list)
        with self.redis.pipeline(transaction=False) as pipeline:
            pipeline.xack("bench", "group", *handle)
            pipeline.xdel("bench", *handle)
            pipeline.execute()


class Kombu(Contender):
    name = "kombu"
    batches = False

    def _queue(self) -> kombu.simple.SimpleQueue:
        if not hasattr(self, "queue"):
            self.connection = kombu.Connection(self.url)
            self.queue = self.connection.SimpleQueue("bench")
        return self.queue

    def send(self, numbers: range) -> None:
        for number in numbers:
            self._queue().put({**PAYLOAD, "number": number}, serializer="json")

    def receive(self, limit: int) -> tuple[list[int], object]:
        try:
            message = self._queue().get(block=True, timeout=0.2)
        except self._queue().Empty:
            return [], None
        return [message.payload["number"]], message

    def ack(self, handle: object) -> None:
        handle.ack()  # type: ignore[attr-defined]

    def close(self) -> None:
        if hasattr(self, "queue"):
            self.queue.close()
            self.connection.close()
        super().close()


CONTENDERS: tuple[type[Contender], ...] = (Coordinator, Streams, BareStreams, Kombu)


@dataclass
class Measured:
    """Messages per second, and the seconds of each operation."""

    rate: float
    latencies: list[float] = field(repr=False)

    @property
    def p99(self) -> float:
        return sorted(self.latencies)[int(len(self.latencies) * 0.99)] * 1000


def send_all(kind: type[Contender], url: str, count: int, batch: int) -> Measured:
    contender = kind(url)
    contender.prepare(count)
    contender.send(range(count, count + batch))  # connect, and load the script
    drain(contender, batch)
    latencies = []
    begun = time.perf_counter()
    for first in range(0, count, batch):
        before = time.perf_counter()
        contender.send(range(first, min(first + batch, count)))
        latencies.append(time.perf_counter() - before)
    rate = count / (time.perf_counter() - begun)
    contender.close()
    return Measured(rate, latencies)


def drain(contender: Contender, batch: int) -> list[int]:
    seen: list[int] = []
    while True:
        numbers, handle = contender.receive(batch)
        if not numbers:
            return seen
        contender.ack(handle)
        seen += numbers


def consume(kind: type[Contender], url: str, batch: int, ready: Connection, go: Connection) -> None:
    """One consumer in its own process; runs until the queue is empty."""
    contender = kind(url)
    contender.redis.ping()
    gc.freeze()  # exclude the objects of the parent from garbage collection
    seen, latencies = [], []
    ready.send(None)
    go.recv()
    begun = ended = time.time()
    while True:
        before = time.perf_counter()
        numbers, handle = contender.receive(batch)
        if not numbers:
            break
        contender.ack(handle)
        latencies.append(time.perf_counter() - before)
        ended = time.time()
        seen += numbers
    contender.close()
    ready.send((seen, latencies, begun, ended))


def consume_all(
    kind: type[Contender], url: str, count: int, batch: int, consumers: int
) -> Measured:
    context = multiprocessing.get_context("fork")
    lines = [(context.Pipe(), context.Pipe()) for _ in range(consumers)]
    processes = [
        context.Process(target=consume, args=(kind, url, batch, ready[1], go[1]))
        for ready, go in lines
    ]
    for process in processes:
        process.start()
    for ready, _ in lines:
        ready[0].recv()
    for _, go in lines:
        go[0].send(None)
    results = [ready[0].recv() for ready, _ in lines]
    for process in processes:
        process.join()
    seen = sorted(number for numbers, *_ in results for number in numbers)
    if seen != list(range(count)):
        raise click.ClickException(f"{kind.name} delivered {len(seen)} of {count} messages")
    taken = max(ended for *_, ended in results) - min(begun for *_, begun, _ in results)
    return Measured(count / taken, [one for _, latencies, *_ in results for one in latencies])


def in_slices(server: RedisServer, count: int, batch: int) -> dict[tuple[str, str], Measured]:
    """All contenders in one process in turns of a few calls: other load affects all equally."""
    address = server.url.rpartition("/")[0]
    kinds = [kind for kind in CONTENDERS if batch == 1 or kind.batches]
    contenders = [kind(f"{address}/{database}") for database, kind in enumerate(kinds)]
    for contender in contenders:
        contender.prepare(count)
        contender.send(range(batch))
        drain(contender, batch)
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    calls = 20
    for first in range(batch, batch + count, batch * calls):
        numbers = [range(n, n + batch) for n in range(first, first + batch * calls, batch)]
        for contender in contenders:
            for some in numbers:
                before = time.perf_counter()
                contender.send(some)
                times["send", contender.name].append(time.perf_counter() - before)
            for some in numbers:
                before = time.perf_counter()
                received, handle = contender.receive(batch)
                contender.ack(handle)
                times["receive and ack", contender.name].append(time.perf_counter() - before)
                if received != list(some):
                    raise click.ClickException(f"{contender.name} delivered {received}")
    for contender in contenders:
        contender.close()
    form = "batch of 100" if batch > 1 else "one by one"
    return {
        (f"{what}, {form}, in slices", name): Measured(batch / statistics.median(taken), taken)
        for (what, name), taken in times.items()
    }


@click.command()
@click.option(
    "--messages", default=3000, help="Messages of one measurement; batches get three times as many."
)
@click.option("--rounds", default=5, help="Number of rounds; the table has medians.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures as JSON.")
def main(messages: int, rounds: int, out: Path | None) -> None:
    """Run the measurements and print a table."""
    found: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    server = RedisServer()
    try:
        for _ in range(rounds):
            for batch in (1, BATCH):
                server.flush()
                for key, measured in in_slices(
                    server, messages * (3 if batch > 1 else 1), batch
                ).items():
                    found[key].append(measured)
                for consumers in CONSUMERS:
                    for kind in CONTENDERS:
                        if batch > 1 and not kind.batches:
                            continue
                        count = messages * 3 if batch > 1 else messages
                        server.flush()
                        form = "batch of 100" if batch > 1 else "one by one"
                        sent = send_all(kind, server.url, count, batch)
                        found[f"send, {form}", kind.name].append(sent)
                        got = consume_all(kind, server.url, count, batch, consumers)
                        label = f"receive and ack, {form}, consumers: {consumers}"
                        found[label, kind.name].append(got)
    finally:
        server.stop()
    figures = show(found)
    if out is not None:
        out.write_text(json.dumps(figures, indent=2))


def show(found: dict[tuple[str, str], list[Measured]]) -> list[dict[str, object]]:
    table = Table("", "contender", "messages/s", "beside streams", "p99 of a call, ms")
    figures: list[dict[str, object]] = []
    for (label, name), runs in sorted(found.items()):
        rate = statistics.median(one.rate for one in runs)
        # Compared within a round: other load affects both.
        neighbours = zip(runs, found[label, "streams"], strict=True)
        ratio = statistics.median(one.rate / beside.rate for one, beside in neighbours)
        p99 = statistics.median(one.p99 for one in runs)
        table.add_row(label, name, f"{rate:,.0f}", f"{ratio:.2f} ×", f"{p99:.2f}")
        figures.append({"what": label, "contender": name, "rate": rate, "ratio": ratio, "p99": p99})
    Console(width=110).print(table)
    return figures


if __name__ == "__main__":
    main()
