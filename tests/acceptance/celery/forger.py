"""Forged messages: written into the queues of a worker past Celery, at random from a seed."""

from __future__ import annotations

import base64
import json
import os
import pickle
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

import amqp
import redis

from flowengine.dispatch.packed_ids import packed

#: A script has no imports, but whoever wants to finds modules in the classes of others.
OS = "found = [c for c in ().__class__.__base__.__subclasses__() if 'BuiltinImporter' in str(c)]\n"
OS += "os = found[0].load_module('posix').__dict__\n"
CONTROL_QUEUE = "guarded-control"
#: Queues of `guarded` alone: workers of other modules may share the broker.
QUEUES = ("guarded", "guarded-scripts", CONTROL_QUEUE)
TASKS = (
    *("flowengine.script", "flowengine.child", "flowengine.now", "flowengine.foreach"),
    *("flowengine.drain", "flowengine.work", "flowengine.evaluate", "flowengine.execute"),
    *("flowengine.watchdog", "celery.map", "celery.starmap", "celery.chunks", "celery.group"),
    *("celery.chain", "celery.chord_unlock", "celery.accumulate", "no.such.task", "", "é\0"),
)
ODD: list[Any] = [
    *(None, True, 0, -1, 10**30, 1.5, "", "x", "\0", "elsewhere", "guarded", [], {}, [[]]),
    *({"a": 1}, "flowengine.script", "guarded.is_here", {"n": 1}, {"n": "x"}, ["a", "b"]),
    "9" * 5_000,
]


@dataclass
class Forged:
    """One message."""

    queue: str
    headers: dict[str, Any]
    content_type: str
    text: bytes
    routing_key: str


class Queues(Protocol):
    """The queues of a broker, past kombu."""

    def push(self, message: Forged) -> None: ...

    def push_odd_envelope(self, message: Forged, random: Random) -> None:
        """Push the message with something wrong outside its headers and its body."""

    def are_empty(self) -> bool: ...


class RedisQueues:
    """A queue of kombu in Redis is a list of JSON texts."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url)

    def push(self, message: Forged) -> None:
        self._redis.lpush(message.queue, json.dumps(self._envelope(message)))

    def push_odd_envelope(self, message: Forged, random: Random) -> None:
        envelope = self._envelope(message)
        holder = random.choice([envelope, envelope["properties"]])
        holder[random.choice(sorted(holder))] = random.choice(ODD)
        texts = ["", "x", "[]", "null", "[" * 5_000, '{"body": 1}', json.dumps(envelope)]
        self._redis.lpush(message.queue, random.choice(texts))

    def are_empty(self) -> bool:
        return not any(self._redis.llen(queue) for queue in QUEUES)

    def close(self) -> None:
        self._redis.close()

    def _envelope(self, message: Forged) -> dict[str, Any]:
        return {
            "body": base64.b64encode(message.text).decode(),
            "content-encoding": "utf-8",
            "content-type": message.content_type,
            "headers": message.headers,
            "properties": {
                "correlation_id": message.headers.get("id"),
                "reply_to": str(uuid.uuid4()),
                "delivery_mode": 2,
                "priority": 0,
                "body_encoding": "base64",
                "delivery_info": {"exchange": "", "routing_key": message.routing_key},
                "delivery_tag": str(uuid.uuid4()),
            },
        }


class RabbitQueues:
    """RabbitMQ checks the frames itself; headers, properties and the body are anybody's."""

    def __init__(self, url: str) -> None:
        self._connection = amqp.Connection(url.partition("@")[2].rstrip("/"))
        self._connection.connect()
        self._channel = self._connection.channel()

    def push(self, message: Forged) -> None:
        self._publish(message, reply_to=str(uuid.uuid4()), delivery_mode=2, priority=0)

    def push_odd_envelope(self, message: Forged, random: Random) -> None:
        odd = random.choice(
            [
                {"content_encoding": "utf-99"},
                {"content_encoding": "binary"},
                {"content_encoding": "x" * 255},
                {"content_type": "text/html; charset=\0"},
                {"correlation_id": "é" * 100},
                {"reply_to": "\0"},
                {"reply_to": QUEUES[0], "correlation_id": ""},
                {"delivery_mode": 1, "priority": 255},
                {"message_id": "", "app_id": "x" * 255, "type": "flowengine.script"},
                {"timestamp": 2**40},
                {"application_headers": None},
                {"application_headers": {"x-death": [{"count": -1}], "": {"": [None, {}]}}},
            ]
        )
        self._publish(message, **odd)

    def _publish(self, message: Forged, **properties: Any) -> None:
        given = {
            "content_type": message.content_type,
            "content_encoding": "utf-8",
            "application_headers": {k: _in_table(v) for k, v in message.headers.items()},
            **properties,
        }
        known = {name: value for name, value in given.items() if value is not None}
        forged = amqp.Message(message.text, **known)
        self._channel.basic_publish(forged, exchange="", routing_key=message.queue)

    def are_empty(self) -> bool:
        declared = (self._channel.queue_declare(name, passive=True) for name in QUEUES)
        return not any(queue.message_count for queue in declared)

    def close(self) -> None:
        self._connection.close()


def _in_table(value: Any) -> Any:
    """A header of AMQP holds integers of 64 bits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(2**63), min(value, 2**63 - 1))
    return value


class Forger:
    """Sends messages that no Celery client sends, or that ask for what they must not get."""

    def __init__(self, queues: Queues, traces: Path, seed: int, task_ids: list[str]) -> None:
        self._queues = queues
        self._random = Random(seed)
        self._mark = traces / "ran-script"
        self._task_ids = task_ids
        self.sent: Counter[str] = Counter()

    def send(self, count: int) -> None:
        for task in ("no.such.task", "guarded.is_here"):
            self._push(task, [[], {}, {}], "long id")
        for _ in range(count):
            task = self._random.choice(TASKS)
            args, kwargs = self._arguments(task)
            self._push(task, [args, kwargs, self._embedded()])

    # --- one message ---

    def _arguments(self, task: str) -> tuple[Any, Any]:
        odd = self._random.choice
        code = f"{OS}os['open']({str(self._mark)!r}, {os.O_CREAT | os.O_WRONLY})"
        script = {"code": code, "params": {}}
        lists = ("guarded", "elsewhere", odd(ODD))
        match task:
            case "flowengine.script":
                return odd([([], script), ([code, {}], {}), ([], {"code": code})])
            case "flowengine.work":
                ids = odd([packed([one]) for one in self._task_ids])
                forged = odd([ids, ids, ids[:-3], f"{ids[:20]}:!!", ids * 300, odd(ODD)])
                return [odd(lists), forged], {}
            case "flowengine.drain":
                return [odd(lists), *([odd(ODD), odd(ODD)][: odd([0, 1, 2])])], {}
            case "flowengine.evaluate":
                return [odd([*self._task_ids, odd(ODD)])], {}
            case "flowengine.execute":
                return [odd(["flowengine.script", "no.such", odd(ODD)]), odd(ODD)], {}
            case "celery.map" | "celery.starmap" | "celery.chunks":
                named = {"task": "flowengine.script", "args": [], "kwargs": script, "options": {}}
                return [odd([named, "flowengine.script", odd(ODD)]), [[code, {}]]], {}
        return odd([[], [1, 2], odd(ODD)]), odd([{}, script, odd(ODD)])

    def _embedded(self) -> Any:
        signature = {"task": "flowengine.script", "args": ["1", {}], "kwargs": {}, "options": {}}
        if self._random.random() < 0.7:
            return {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
        keys = ("callbacks", "errbacks", "chain", "chord")
        values = ([signature], [[signature]], signature, None, 5)
        return self._random.choice([{key: self._random.choice(values) for key in keys}, None, 5])

    def _push(self, task: str, body: Any, how: str = "") -> None:
        odd, random = self._random.choice, self._random
        queue = odd(QUEUES)
        headers = {
            "lang": "py",
            "task": task,
            "id": str(uuid.UUID(int=random.getrandbits(128))),
            "eta": None,
            "expires": None,
            "group": None,
            "retries": 0,
            "parent_id": None,
            "timelimit": [None, None],
            "root_id": None,
            "argsrepr": "",
            "kwargsrepr": "",
        }
        kind = "application/json"
        text = json.dumps(body).encode()
        if not how and random.random() < 0.35:
            how = odd(["header", "no header", "body", "type", "deep", "envelope"])
        match how:
            case "long id":  # a reply cannot have it as a property
                headers["id"] = "9" * 300
            case "header":
                headers[odd(sorted(headers))] = odd(ODD)
            case "no header":
                del headers[odd(sorted(headers))]
            case "body":
                text = odd([b"", b"null", b"5", b"[]", b"[1,2]", b'{"a":1}', b"\xff", text[:-2]])
            case "type":
                kind, text = odd(
                    [
                        ("application/x-python-serialize", pickle.dumps(body)),
                        ("application/data", text),
                        ("", text),
                    ]
                )
            case "deep":
                text = b"[" * 100_000
        self.sent[how or "arguments"] += 1
        message = Forged(queue, headers, kind, text, odd([queue, "elsewhere"]))
        if how == "envelope":
            self._queues.push_odd_envelope(message, random)
        else:
            self._queues.push(message)
