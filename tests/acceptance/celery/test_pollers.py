"""Pollers, runner services and Celery workers on one task list."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flowengine.sdk import AgentPoller, RunnerConfig, RunnerService, ToolRegistry
from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes.fleet import until
from tests.integration.engines import one

RUNS = 10


def test_a_poller_a_runner_and_a_worker_share_a_task_list(
    make_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks of `Work` have no code in the worker, those of the list `wide` none in others."""
    fleet = make_fleet()
    monkeypatch.setenv("TRACES", str(fleet.traces))
    fleet.add_worker("worker", *QUICK_START, "--concurrency=2")
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
    executions = [path.read_text() for path in fleet.traces.glob("executions-*")]
    assert sum(text.count("\n") for text in executions) == len(tasks)
