"""Pollers, runner services and Celery workers on one task list, and the status of a worker."""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import Any

import pytest

from flowengine.sdk import AgentPoller, RunnerConfig, RunnerService, ToolRegistry
from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes.fleet import Fleet, until
from tests.integration.engines import one
from tests.servers import free_port

RUNS = 10


@pytest.fixture(scope="module")
def watched_fleet(make_fleet: MakeFleet) -> Fleet:
    """One worker, which serves its status."""
    fleet = make_fleet(FLOWENGINE_STATUS_PORT=str(free_port()))
    fleet.add_worker("worker", *QUICK_START, "--concurrency=2")
    return fleet


def executions(fleet: Fleet) -> int:
    return sum(path.read_text().count("\n") for path in fleet.traces.glob("executions-*"))


def test_a_poller_a_runner_and_a_worker_share_a_task_list(
    watched_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks of `Work` have no code in the worker, those of the list `wide` none in others."""
    fleet = watched_fleet
    monkeypatch.setenv("TRACES", str(fleet.traces))
    before = executions(fleet)
    poller = AgentPoller.connect(fleet.database_url)
    tools = ToolRegistry()
    runner = RunnerService.connect(fleet.database_url, RunnerConfig(http_port=0), tools)
    threads = [threading.Thread(target=agent.start) for agent in (poller, runner)]
    worked: list[Any] = []

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        worked.append(payload["x"])
        return {"y": payload["x"]}

    for agent in (poller, tools):
        agent.register("t.Work", work)
        for facet in (graphs.add, graphs.multiply, graphs.add_up):
            agent.register(facet)
    try:
        for thread in threads:
            thread.start()
        until(lambda: len(fleet.engine.servers()) == 3, "the registration of all servers")
        mixed = [fleet.start(graphs.mixed, n=n) for n in range(RUNS)]
        plain = [fleet.engine.start(one(), "t.Flow", {"x": n}) for n in range(RUNS)]
        assert [run.result(timeout=60) for run in mixed] == [
            graphs.expected(n) for n in range(RUNS)
        ]
        assert [run.result(timeout=60) for run in plain] == [{"y": n} for n in range(RUNS)]
    finally:
        for stopped, thread in zip((poller, runner), threads, strict=True):
            stopped.stop()
            thread.join(30)
            stopped.close()
    assert sorted(worked) == list(range(RUNS))  # each once
    tasks = [task for run in mixed for task in fleet.engine.tasks(run.id)]
    assert len(tasks) == RUNS * graphs.TASKS
    assert {task.state for task in tasks} == {"completed"}
    assert sum(task.losses for task in tasks) == 0
    assert executions(fleet) - before == len(tasks)


def get(address: str) -> tuple[int, str]:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.status, answer.read().decode()


def test_a_worker_with_a_status_port_serves_the_pages_of_a_runner(watched_fleet: Fleet) -> None:
    fleet = watched_fleet
    assert fleet.start(graphs.mixed, n=3).result(timeout=60) == graphs.expected(3)
    # If another process has taken the port meanwhile, the worker has the next one.
    until(lambda: fleet.count_logged("status at http://127.0.0.1:") == 1, "the status")
    words = fleet.logs().split()
    address = next(word for word in words if word.startswith("http://127.0.0.1:"))
    address = address.removesuffix("/status")
    assert get(f"{address}/health") == (200, '{"status":"ok"}')
    status = json.loads(get(f"{address}/status")[1])
    assert status["server_id"] in [server.uuid for server in fleet.engine.servers()]
    assert (status["state"], status["max_concurrent"]) == ("running", 2)
    assert graphs.add.name in status["handlers"]

    def handled() -> int:
        counts = json.loads(get(f"{address}/status")[1])["handled"]
        return sum(count["handled"] for count in counts)

    # The pool children write their counts at the interval of heartbeats.
    until(lambda: handled() >= graphs.TASKS, "the counts of the pool children")
    assert "flowengine_server_up{" in get(f"{address}/metrics")[1]
