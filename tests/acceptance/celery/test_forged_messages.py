"""Whoever reaches the broker can send any message. None runs a step, and none ends a worker."""

from __future__ import annotations

import base64
import json
import os
import pickle
import time
import uuid
from collections import Counter
from random import Random
from typing import Any

import psutil
import pytest
import redis

from flowengine.dispatch.packed_ids import packed
from flowengine.evaluator import TaskState
from tests.acceptance.celery import guarded
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes import Fleet, until

#: A script has no imports, but whoever wants to finds modules in the classes of others.
OS = "found = [c for c in ().__class__.__base__.__subclasses__() if 'BuiltinImporter' in str(c)]\n"
OS += "os = found[0].load_module('posix').__dict__\n"
QUEUES = ("default", "scripts", "flowengine")
TASKS = (
    *("flowengine.script", "flowengine.child", "flowengine.now", "flowengine.foreach"),
    *("flowengine.drain", "flowengine.work", "flowengine.evaluate", "flowengine.execute"),
    *("flowengine.watchdog", "celery.map", "celery.starmap", "celery.chunks", "celery.group"),
    *("celery.chain", "celery.chord_unlock", "celery.accumulate", "no.such.task", "", "é\0"),
)
ODD: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        10**30,
        1.5,
        "",
        "x",
        "\0",
        "elsewhere",
        "default",
        [],
        {},
        [[]],
        {"a": 1},
    ),
    *("flowengine.script", "guarded.is_here", {"n": 1}, {"n": "x"}, ["a", "b"], "9" * 5_000),
]


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet) -> Fleet:
    """A worker that may run scripts, has the code of all steps, and consumes three queues."""
    fleet = make_fleet("tests.acceptance.celery.guarded", FLOWENGINE_SCRIPTS="on")
    fleet.add_worker("only", *QUICK_START, "-Q", ",".join(QUEUES))
    return fleet


class Forger:
    """Writes messages into the queues of a worker, past Celery."""

    def __init__(self, fleet: Fleet, seed: int, task_ids: list[str]) -> None:
        self._redis = redis.Redis.from_url(fleet.broker.url)
        self._random = Random(seed)
        self._mark = fleet.traces / "ran-script"
        self._task_ids = task_ids
        self.sent: Counter[str] = Counter()

    def send(self, count: int) -> None:
        for _ in range(count):
            task = self._random.choice(TASKS)
            args, kwargs = self._arguments(task)
            self._push(task, [args, kwargs, self._embedded()])

    def wait_until_consumed(self) -> None:
        until(
            lambda: not any(self._redis.llen(queue) for queue in QUEUES),
            "all messages are consumed",
            seconds=60,
        )

    # --- one message ---

    def _arguments(self, task: str) -> tuple[Any, Any]:
        odd = self._random.choice
        code = f"{OS}os['open']({str(self._mark)!r}, {os.O_CREAT | os.O_WRONLY})"
        script = {"code": code, "params": {}}
        lists = ("default", "elsewhere", odd(ODD))
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

    def _push(self, task: str, body: Any) -> None:
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
        kind, encoding = "application/json", "utf-8"
        text = json.dumps(body).encode()
        how = "arguments"
        if random.random() < 0.35:
            how = odd(["header", "no header", "body", "type", "deep", "envelope"])
        match how:
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
        self.sent[how] += 1
        message = {
            "body": base64.b64encode(text).decode(),
            "content-encoding": encoding,
            "content-type": kind,
            "headers": headers,
            "properties": {
                "correlation_id": headers.get("id"),
                "reply_to": str(uuid.uuid4()),
                "delivery_mode": 2,
                "priority": 0,
                "body_encoding": "base64",
                "delivery_info": {"exchange": "", "routing_key": odd([queue, "elsewhere"])},
                "delivery_tag": str(uuid.uuid4()),
            },
        }
        if how == "envelope":
            holder = odd([message, message["properties"]])
            holder[odd(sorted(holder))] = odd(ODD)
            wrong = odd(["", "x", "[]", "null", "[" * 5_000, '{"body": 1}', json.dumps(message)])
            self._redis.lpush(queue, wrong)
        else:
            self._redis.lpush(queue, json.dumps(message))


def attack(fleet: Fleet, seed: int, count: int) -> None:
    engine = fleet.engine
    (worker,) = fleet.workers
    pid = worker.pid
    later = fleet.start(guarded.waits, n=1)
    until(
        lambda: any(
            task.state == TaskState.PENDING and task.lease == 0 and task.try_number == 2
            for task in engine.tasks(later.id)
        ),
        "the first try has failed",
    )
    elsewhere = fleet.start(guarded.is_elsewhere, n=1)
    waiting = [
        task
        for run in (later, elsewhere)
        for task in engine.tasks(run.id)
        if task.state == TaskState.PENDING
    ]
    assert [task.task_list_name for task in waiting] == ["default", "elsewhere"]
    tries = (fleet.traces / "ran-later").read_text()
    forger = Forger(fleet, seed, [task.uuid for task in waiting])
    memory = psutil.Process(pid).memory_info().rss
    began = time.monotonic()
    forger.send(count)
    honest = fleet.start(guarded.is_here, n=1)
    forger.wait_until_consumed()
    assert honest.result(timeout=30) == 3
    seconds = time.monotonic() - began
    grown = (psutil.Process(pid).memory_info().rss - memory) / 2**20
    print(
        f"\nseed {seed}: {count} forged messages in {seconds:.1f} s, {dict(forger.sent)}; "
        f"the worker grew by {grown:.1f} MB"
    )
    assert worker.pid == pid
    assert psutil.pid_exists(pid), "the worker has survived"
    assert not (fleet.traces / "ran-script").exists(), "no script has run"
    assert not (fleet.traces / "ran-elsewhere").exists(), "it is for the workers of another list"
    assert (fleet.traces / "ran-later").read_text() == tries, "it is not due"
    assert [task.state for task in engine.tasks(elsewhere.id)] == [TaskState.PENDING]
    assert fleet.count_logged("rejected a malformed message") > count / 100
    assert grown < 100


def test_forged_messages_run_no_step_and_end_no_worker(fleet: Fleet, chaos_seed: int) -> None:
    attack(fleet, chaos_seed, 813)


@pytest.mark.chaos
def test_ten_thousand_forged_messages_run_no_step(fleet: Fleet, chaos_seed: int) -> None:
    attack(fleet, chaos_seed, 10_000)
