"""Hostile clients: bodies that are too large, no text, too deep; nothing of the task is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowengine.engine import Engine
from tests.integration.sdk.pollers import WAIT
from tests.integration.wire.clients import Client
from tests.integration.wire.test_tasks import start

LEASE = b'{"lease": 1, "result": '
BODIES: dict[str, tuple[bytes, int, str]] = {
    "10 MiB": (LEASE + b'{"y": "' + 10 * 1024 * 1024 * b"x" + b'"}}', 413, "body_too_large"),
    "invalid UTF-8": (LEASE + b'{"y": "\xff\xfe"}}', 400, "bad_json"),
    "deep JSON": (LEASE + 100_000 * b"[" + 100_000 * b"]" + b"}", 400, "bad_json"),
    "just too deep": (LEASE + b'{"y": ' + 300 * b"[" + 300 * b"]" + b"}}", 400, "bad_json"),
    "NaN": (LEASE + b'{"y": NaN}}', 400, "bad_json"),
    "infinity": (LEASE + b'{"y": 1e999}}', 400, "bad_json"),
    "a long integer": (LEASE + b'{"y": ' + 10_000 * b"9" + b"}}", 400, "bad_json"),
    "half of a surrogate pair": (LEASE + b'{"y": "\\ud800"}}', 400, "bad_json"),
    "no JSON": (b"lease=1", 400, "bad_json"),
    "no object": (b"[1]", 400, "bad_request"),
    "no lease": (b'{"result": {"y": 1}}', 400, "bad_request"),
    "a lease of another type": (b'{"lease": "1", "result": {"y": 1}}', 400, "bad_request"),
    "a truth value as lease": (b'{"lease": true, "result": {"y": 1}}', 400, "bad_request"),
    "a huge lease": (b'{"lease": 99999999999, "result": {"y": 1}}', 400, "bad_request"),
    "no result": (b'{"lease": 1}', 400, "bad_request"),
    "a result that is no map": (LEASE + b"5}", 400, "bad_request"),
    "another field": (b'{"lease": 1, "result": {"y": 1}, "admin": true}', 400, "bad_request"),
    "nothing": (b"", 400, "bad_request"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_is_refused_and_the_task_is_still_held(
    engine: Engine, client: Client, name: str
) -> None:
    body, status, code = BODIES[name]
    run = start(engine)
    client.register()
    (task,) = client.claim()
    path = f"/v1/tasks/{task['task_id']}/continue"
    found, answer = client.send("POST", path, body)
    assert (found, answer["error"]["code"]) == (status, code)
    assert answer["error"]["message"]
    assert answer["error"]["hint"]
    assert "Traceback" not in str(answer)
    assert engine.tasks(run.id)[0].state == "running"
    assert client.report(task, "continue", result={"y": 1})[0] == 200
    assert run.result(timeout=WAIT) == {"y": 1}


def test_a_body_of_another_type_is_refused(client: Client) -> None:
    body = json.dumps({"handlers": ["a"]}).encode()
    status, answer = client.send("POST", "/v1/servers", body, "text/plain")
    assert (status, answer["error"]["code"]) == (415, "not_json")
    assert client.send("POST", "/v1/servers", body, "application/json; charset=utf-8")[0] == 200


@pytest.mark.parametrize(
    "document",
    [
        {"handlers": []},
        {"handlers": ["a b"]},
        {"handlers": ["flowengine.sleep"]},
        {"handlers": ["a"], "server_name": "\x00"},
        {"handlers": ["a"], "task_lists": [""]},
        {"handlers": ["a"], "task_lists": ["x" * 256]},
        {"handlers": ["a"] * 501},
    ],
)
def test_a_registration_that_is_wrong_is_refused(
    engine: Engine, client: Client, document: dict[str, Any]
) -> None:
    assert client.refused("POST", "/v1/servers", document) == (400, "bad_request")
    assert engine.servers() == []


def test_values_of_the_edge_are_kept_as_they_are(engine: Engine, client: Client) -> None:
    client.register()
    for value in ("\x00", "😀", 2**63, -0.5, [], {"a": [None, {"": ""}]}):
        run = start(engine, value)
        (task,) = client.claim()
        assert task["arguments"] == {"x": value}
        assert client.report(task, "continue", result={"y": value})[0] == 200
        assert run.result(timeout=WAIT) == {"y": value}
        assert client.get(f"/v1/runs/{run.id}")["outputs"] == {"y": value}


def test_an_error_of_an_agent_may_have_any_text(engine: Engine, client: Client) -> None:
    client.register()
    for error in ({}, {"type": "Ä" * 255}, {"message": "\x00😀" * 9000, "traceback": "x" * 90_000}):
        run = start(engine)
        (task,) = client.claim()
        status, _ = client.report(task, "fail", error=error, retry_after_seconds=1)
        assert status == 200
        assert engine.get(run.id).state == "FAILED"


def test_progress_is_limited(engine: Engine, client: Client) -> None:
    start(engine)
    client.register()
    (task,) = client.claim()
    status, answer = client.report(task, "heartbeat", progress="x" * 9_000)
    assert (status, answer["error"]["code"]) == (422, "refused_value")
    assert client.report(task, "heartbeat", progress={"share": 0.5}) == (200, {"wanted": True})
