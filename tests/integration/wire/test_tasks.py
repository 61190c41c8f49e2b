"""Tasks over the wire: claimed, continued, failed, released; reported once, under their lease."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from flowengine.engine import Engine
from flowengine.store.claims import WorkerIdentity
from tests.integration.engines import one
from tests.integration.sdk.pollers import WAIT, until
from tests.integration.wire.clients import Client, Wire


@pytest.fixture
def url(database_url: str) -> str:
    return database_url


def start(engine: Engine, x: Any = 1, **options: Any) -> Any:
    return engine.start(one(), "t.Flow", {"x": x}, **options)


def test_an_agent_registers_claims_continues_and_deregisters(
    engine: Engine, client: Client
) -> None:
    run = start(engine, 4)
    client.register(service_name="node-agent", server_name="vm-1")
    (row,) = engine.servers()
    assert (row.service_name, row.server_name, row.handlers) == ("node-agent", "vm-1", ["t.Work"])
    (task,) = client.claim()
    assert (task["facet"], task["arguments"], task["run_id"]) == ("t.Work", {"x": 4}, run.id)
    status, answer = client.report(task, "continue", result={"y": 5})
    assert (status, answer["state"], answer["duplicate"]) == (200, "completed", False)
    assert run.result(timeout=WAIT) == {"y": 5}
    assert client.claim() == []
    status, _ = client.ask("DELETE", f"/v1/servers/{client.server_id}")
    assert status == 200
    assert engine.servers() == []
    heartbeat = f"/v1/servers/{client.server_id}/heartbeat"
    assert client.refused("POST", heartbeat, {}) == (410, "server_gone")
    claim = {"server_id": client.server_id}
    assert client.refused("POST", "/v1/tasks/claim", claim) == (410, "server_gone")


def test_a_task_is_claimed_by_its_short_name_too(engine: Engine, client: Client) -> None:
    start(engine)
    client.register("Work", "t.Other")
    assert [task["facet"] for task in client.claim(most=5)] == ["t.Work"]


def test_an_error_fails_the_step_and_the_run(engine: Engine, client: Client) -> None:
    run = start(engine)
    client.register()
    (task,) = client.claim()
    error = {"type": "CardDeclined", "message": "no money"}
    status, answer = client.report(task, "fail", error=error)
    assert (status, answer["state"]) == (200, "failed")
    failed = engine.get(run.id)
    assert failed.state == "FAILED"
    assert failed.error is not None
    assert (failed.error["type"], failed.error["message"]) == ("CardDeclined", "no money")
    assert engine.tasks(run.id)[0].state == "failed"


def test_a_released_task_is_claimed_again(engine: Engine, client: Client) -> None:
    start(engine)
    client.register()
    (task,) = client.claim()
    assert client.report(task, "release") == (200, {"task_id": task["task_id"], "released": True})
    assert client.report(task, "release")[1]["released"] is False
    (again,) = client.claim()
    assert (again["task_id"], again["losses"]) == (task["task_id"], 0)
    assert again["lease"] > task["lease"]
    status, answer = client.report(task, "continue", result={"y": 1})
    assert (status, answer["error"]["code"]) == (409, "lease_lost")


# --- sent twice, late, or by others ---


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_report_that_is_sent_twice_is_recorded_once(
    engine: Engine, wire: Wire, client: Client, is_forgotten: bool
) -> None:
    run = start(engine)
    client.register()
    (task,) = client.claim()
    if is_forgotten:  # as by a server that has restarted, or another one
        wire.server._operations.known.__init__()  # type: ignore[misc]
    answers = [client.report(task, "continue", result={"y": n}) for n in (1, 2)]
    assert [(status, answer["duplicate"]) for status, answer in answers] == [
        (200, False),
        (200, True),
    ]
    assert run.result(timeout=WAIT) == {"y": 1}
    status, answer = client.report(task, "fail", error={})
    assert (status, answer["error"]["code"]) == (409, "already_reported")
    assert client.report(task, "heartbeat") == (200, {"wanted": False})


def test_the_report_of_a_cancelled_run_is_refused_and_its_agent_learns_it(
    engine: Engine, client: Client
) -> None:
    run = start(engine)
    client.register()
    (task,) = client.claim()
    assert client.report(task, "heartbeat", progress=0.5) == (200, {"wanted": True})
    assert engine.steps(run.id)[-1].progress == 0.5
    engine.cancel(run.id)
    assert client.report(task, "heartbeat") == (200, {"wanted": False})
    status, answer = client.report(task, "continue", result={"y": 1})
    assert (status, answer["error"]["code"]) == (409, "lease_lost")
    beat = client.post(
        f"/v1/servers/{client.server_id}/heartbeat",
        held=[{"task_id": task["task_id"], "lease": task["lease"]}],
    )
    assert [lost["task_id"] for lost in beat["lost"]] == [task["task_id"]]


def test_the_task_of_another_token_is_not_touched(
    engine: Engine, wire: Wire, client: Client
) -> None:
    run = start(engine)
    client.register()
    (task,) = client.claim()
    other = wire.client("other", ["claim"])
    for verb, document in (("continue", {"result": {"y": 9}}), ("fail", {"error": {}})):
        status, answer = other.report(task, verb, **document)
        assert (status, answer["error"]["code"]) == (409, "lease_lost")
    assert other.report(task, "release")[1]["released"] is False
    assert other.report(task, "heartbeat")[1] == {"wanted": False}
    for method, path in (
        ("POST", f"/v1/servers/{client.server_id}/heartbeat"),
        ("DELETE", f"/v1/servers/{client.server_id}"),
    ):
        assert other.refused(method, path, {} if method == "POST" else None) == (
            404,
            "unknown_server",
        )
    claim = {"server_id": client.server_id}
    assert other.refused("POST", "/v1/tasks/claim", claim) == (404, "unknown_server")
    assert client.report(task, "continue", result={"y": 5})[0] == 200
    assert run.result(timeout=WAIT) == {"y": 5}


@pytest.mark.parametrize("lease", [2, 77, 2**31 - 1])
def test_a_lease_that_was_never_given_is_refused(
    engine: Engine, client: Client, lease: int
) -> None:
    start(engine)
    client.register()
    (task,) = client.claim()
    status, answer = client.report({**task, "lease": lease}, "continue", result={"y": 1})
    assert (status, answer["error"]["code"]) == (409, "lease_lost")
    missing = {"task_id": "0" * 32, "lease": 1}
    status, answer = client.report(missing, "continue", result={})
    assert (status, answer["error"]["code"]) == (404, "unknown_task")


# --- results ---


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({}, "'y' is missing"),
        ({"y": 1, "z": 2}, "z"),
        ({"y": "x" * (1024 * 1024 + 1)}, "bytes"),
    ],
)
def test_a_result_that_does_not_fit_fails_the_step_and_says_why(
    engine: Engine, client: Client, result: dict[str, Any], message: str
) -> None:
    run = start(engine)
    client.register()
    (task,) = client.claim()
    status, answer = client.report(task, "continue", result=result)
    assert (status, answer["error"]["code"]) == (422, "refused_result")
    assert message in answer["error"]["message"]
    assert engine.get(run.id).state == "FAILED"


# --- claims that wait ---


def in_background(call: Any) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


def waiting(wire: Wire) -> int:
    return wire.server._operations.claims._waiting.total()


def asking(wire: Wire) -> bool:
    """Whether a query runs for requests that wait."""
    return any(group.is_serving for group in wire.server._operations.claims._groups.values())


def test_a_claim_waits_for_a_task(engine: Engine, wire: Wire, client: Client) -> None:
    client.register()
    thread, answers = in_background(lambda: client.claim(wait_seconds=WAIT))
    until(lambda: waiting(wire) == 1)
    run = start(engine)
    thread.join(WAIT)
    assert [task["run_id"] for (task,) in answers] == [run.id]


def test_waiting_claims_need_no_thread_each_and_each_gets_one_task(
    engine: Engine, wire: Wire, client: Client
) -> None:
    client.register()
    before = set(threading.enumerate())  # servers of earlier tests may have some
    clients = [in_background(lambda: client.claim(wait_seconds=WAIT)) for _ in range(30)]
    until(lambda: waiting(wire) == 30)
    threads = [thread for thread in threading.enumerate() if thread not in before]
    assert sum("flowengine" in thread.name for thread in threads) <= 4 + 8
    for number in range(30):
        start(engine, number)
    for thread, _ in clients:
        thread.join(WAIT)
    given = [task["arguments"]["x"] for _, (tasks,) in clients for task in tasks]
    assert sorted(given) == list(range(30))


def test_claims_of_one_token_are_limited(engine: Engine, wire: Wire, client: Client) -> None:
    object.__setattr__(engine.settings, "max_waiting_claims", 1)
    client.register()
    thread, answers = in_background(lambda: client.claim(wait_seconds=WAIT))
    until(lambda: waiting(wire) == 1)
    claim = {"server_id": client.server_id}
    assert client.refused("POST", "/v1/tasks/claim", claim) == (429, "too_many_claims")
    start(engine)
    thread.join(WAIT)
    assert len(answers[0]) == 1


def test_a_repeated_claim_gets_the_same_tasks(engine: Engine, client: Client) -> None:
    for number in range(2):
        start(engine, number)
    client.register()
    first = client.claim(request_id="r1")
    assert client.claim(request_id="r1") == first
    assert client.claim(request_id="r2") != first
    client.report(first[0], "continue", result={"y": 1})
    assert client.claim(request_id="r1") == []


def test_the_task_of_a_client_that_has_gone_is_claimed_by_another(
    engine: Engine, wire: Wire, client: Client
) -> None:
    client.register()
    body = f'{{"server_id": "{client.server_id}", "wait_seconds": {WAIT}}}'.encode()
    head = f"POST /v1/tasks/claim HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", wire.server.port), WAIT) as gone:
        gone.sendall(head.encode() + body)
        until(lambda: waiting(wire) == 1)
    until(lambda: waiting(wire) == 0)
    start(engine)
    assert len(client.claim(wait_seconds=WAIT)) == 1


def test_an_answer_that_cannot_be_delivered_is_released(
    engine: Engine, wire: Wire, client: Client
) -> None:
    start(engine)
    client.register()
    (task,) = client.claim()
    claims = wire.server._operations.claims
    held = engine.tasks(task["run_id"])
    claims.give_back(held)
    (again,) = client.claim(wait_seconds=WAIT)
    assert again["lease"] > task["lease"]


def test_a_claim_whose_answer_was_lost_is_released_by_the_next_heartbeat(
    engine: Engine, client: Client
) -> None:
    start(engine)
    client.register()
    (task,) = client.claim()
    heartbeat = f"/v1/servers/{client.server_id}/heartbeat"
    assert client.post(heartbeat, held=[])["released"] == []  # its answer may be on its way
    with engine.database.write() as session:
        from flowengine.store.parts import statement

        session.execute(statement("UPDATE flowengine_task SET activity = activity - 60000"), {})  # type: ignore[attr-defined]
    assert client.post(heartbeat)["released"] == []  # it has not said what it holds
    released = client.post(heartbeat, held=[])["released"]
    assert [item["task_id"] for item in released] == [task["task_id"]]
    assert len(client.claim()) == 1


def test_a_server_that_dies_loses_its_tasks_to_others(engine: Engine, client: Client) -> None:
    from flowengine.engine.recovery import report_lost_tries

    run = start(engine)
    client.register()
    (task,) = client.claim()
    with engine.database.read() as session:
        (row,) = session.servers.alive()
        held = session.recovery.held_by_boots([row.boot_id])
    report_lost_tries(engine, held, "the worker")
    with engine.database.write() as session:
        session.servers.mark_dead(row)
    other = engine.claim(["t.Work"], "default", WorkerIdentity("other", "o" * 32), most=1)
    assert [again.losses for again in other] == [1]
    status, answer = client.report(task, "continue", result={"y": 1})
    assert (status, answer["error"]["code"]) == (409, "lease_lost")
    client.post(f"/v1/servers/{client.server_id}/heartbeat")  # it lives after all
    assert [server.state for server in engine.servers()] == ["running"]
    assert engine.get(run.id).state == "RUNNING"


def test_a_stopping_server_answers_waiting_claims(
    engine: Engine, wire: Wire, client: Client
) -> None:
    client.register()
    thread, answers = in_background(lambda: client.claim(wait_seconds=WAIT))
    until(lambda: waiting(wire) == 1)
    wire.server.stop()
    thread.join(WAIT)
    assert answers == [[]]


def test_a_waiting_claim_of_a_silent_server_gets_no_task(
    engine: Engine, wire: Wire, client: Client
) -> None:
    """The process of the first agent is suspended: its connection stays open."""
    frozen, other = client, wire.client("other", ["claim"])
    frozen.register()
    other.register()
    thread, answers = in_background(lambda: frozen.claim(wait_seconds=WAIT))
    until(lambda: waiting(wire) == 1)
    servers = wire.server._operations.servers
    (of_frozen,) = [s for s in servers._cached.values() if s.row.uuid == frozen.server_id]
    with engine.database.write() as session:
        (row,) = session.servers.by_boot_ids([of_frozen.row.boot_id])
        session.servers.mark_dead(row)
    servers._clock = lambda: time.monotonic() + 3_600  # after the row, which it looks at again
    until(lambda: not asking(wire))  # a query that began before would get the task
    run = start(engine)
    (task,) = other.claim(wait_seconds=WAIT)
    assert task["run_id"] == run.id
    thread.join(WAIT)
    assert answers == [[]]
