"""Messages that are made to end a worker: it executes the next honest one."""

from __future__ import annotations

import bz2
import json
import lzma
import uuid
import zlib
from collections.abc import Callable
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
import redis
from celery import Celery

from tests.acceptance.celery import guarded
from tests.acceptance.celery.attack import ARGUMENTS, ATTACKED
from tests.acceptance.celery.conftest import MakeFleet
from tests.acceptance.celery.forger import Forged, RedisQueues
from tests.celery_nodes import Fleet, until

KEYED = {**ATTACKED, "FLOWENGINE_MESSAGE_KEYS": "m" * 40}
QUEUE = "guarded"
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet) -> Fleet:
    fleet = make_fleet(**KEYED)
    fleet.add_worker("only", *ARGUMENTS)
    return fleet


def message(text: bytes, **headers: Any) -> Forged:
    known = {"task": "flowengine.drain", "id": str(uuid.uuid4()), "lang": "py", **headers}
    return Forged(QUEUE, known, "application/json", text, QUEUE)


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def body(value: str) -> bytes:
    return f"[[{value}], {{}}, {{}}]".encode()


def bomb(compress: Callable[[bytes], bytes], kind: str) -> Forged:
    return message(compress(body(json.dumps("0" * 200 * MEGABYTE))), compression=kind)


HOSTILE = {
    "a deep body": lambda: message(body(deep(600))),
    "a deep header": lambda: message(body("1"), stamps=json.loads(deep(600))),
    "deep options": lambda: message(f'[[], {{}}, {{"chain": {deep(600)}}}]'.encode()),
    "deep text": lambda: message(body(deep(100_000))),
    "gzip": lambda: bomb(zlib.compress, "application/x-gzip"),
    "bzip2": lambda: bomb(bz2.compress, "application/x-bz2"),
    "xz": lambda: bomb(lzma.compress, "application/x-lzma"),
    "cut gzip": lambda: message(zlib.compress(body("1"))[:-4], compression="application/x-gzip"),
    "no gzip": lambda: message(b"\0", compression="application/x-gzip"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_message_loses_itself_alone(fleet: Fleet, kind: str) -> None:
    (worker,) = fleet.workers
    pid, main = worker.pid, psutil.Process(worker.pid)
    before = main.memory_info().rss
    with closing(RedisQueues(fleet.broker.url)) as queues:
        for _ in range(5):  # more than the worker has pool children
            queues.push(HOSTILE[kind]())
        assert fleet.start(guarded.is_here, n=1).result(timeout=60) == 3
        until(queues.are_empty, "all messages are consumed")
    assert worker.pid == pid
    assert psutil.pid_exists(pid)
    grown = (main.memory_info().rss - before) / MEGABYTE
    assert grown < 150, f"the worker grew by {grown:.0f} MB"


@pytest.mark.parametrize("missing", ["exchange", "routing_key", "surrogate"])
def test_a_hostile_entry_of_a_list_in_redis_loses_itself_alone(fleet: Fleet, missing: str) -> None:
    (worker,) = fleet.workers
    pid, reconnected = worker.pid, fleet.count_logged("Connection to broker lost")
    with (
        closing(RedisQueues(fleet.broker.url)) as queues,
        redis.Redis.from_url(fleet.broker.url) as client,
    ):
        entry = queues._envelope(message(body("1")))
        if missing == "surrogate":
            entry["body"] = "\ud800"
        else:
            del entry["properties"]["delivery_info"][missing]
        for _ in range(5):
            client.lpush(QUEUE, json.dumps(entry))
        assert fleet.start(guarded.is_here, n=1).result(timeout=60) == 3
        until(queues.are_empty, "all messages are consumed")
    assert worker.pid == pid
    assert psutil.pid_exists(pid)
    assert fleet.count_logged("Connection to broker lost") == reconnected


def test_a_message_that_no_child_can_be_given_gives_its_place_back() -> None:
    from celery.worker import WorkController
    from kombu.asynchronous.semaphore import LaxBoundedSemaphore

    from flowengine.assembly.message_guard import guard_consumers

    class Request:
        message = Mock(delivery_info={"routing_key": QUEUE})

        def execute_using_pool(self, pool: object) -> None:
            raise RecursionError("maximum recursion depth exceeded while pickling")

    guard_consumers()
    worker = WorkController.__new__(WorkController)
    worker.app, worker.pool = Celery(), None
    worker.semaphore = LaxBoundedSemaphore(2)
    worker._quick_acquire, worker._quick_release = (
        worker.semaphore.acquire,
        worker.semaphore.release,
    )
    for _ in range(5):
        worker._process_task_sem(Request())
    assert worker.semaphore.value == 2
    assert Request.message.reject.call_count == 5
