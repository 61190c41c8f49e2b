"""Eight events joined by one, in eight threads: the join runs once.

The original ran it more than once in 6 of 40 trials, and in 40 of 40 with threads that take turns
as often as here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.engine import Engine
from flowengine.sdk import (
    AgentPoller,
    AgentPollerConfig,
    RunnerConfig,
    RunnerService,
    ToolRegistry,
)
from flowengine.settings import Settings
from tests.integration.engines import opened
from tests.integration.sdk.pollers import WAIT, started
from tests.integration.sdk.test_agent_poller import double, joined

pytestmark = pytest.mark.each_database


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    settings = Settings(spool_directory=str(tmp_path / "spool"))
    with opened(database_url, settings=settings) as engine:
        yield engine


@pytest.fixture
def _impatient_threads() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


def count_joins(engine: Engine, kind: str, trials: int) -> int:
    joins, lock = list[int](), threading.Lock()

    def join(payload: dict[str, Any]) -> dict[str, Any]:
        with lock:
            joins.append(1)
        return {"result": sum(payload["ns"])}

    agent: AgentPoller | RunnerService
    if kind == "runner":
        tools = ToolRegistry()
        config = RunnerConfig(max_concurrent=8, http_max_port_attempts=0)
        agent = RunnerService(engine, config, tools)
        register: Any = tools.register
    else:
        agent = AgentPoller(engine, AgentPollerConfig(max_concurrent=8))
        register = agent.register
    register(double)
    register("sdk_tests.Total", join)
    with started(agent):
        for n in range(trials):
            run = engine.start(joined.program(), joined.name, joined.inputs(n))
            assert run.result(timeout=WAIT) == 16 * n
    return len(joins)


@pytest.mark.usefixtures("_impatient_threads")
def test_the_threads_of_a_runner_join_eight_events_once(engine: Engine) -> None:
    """The short variant of the test below, for a runner; `test_agent_poller` has a poller's."""
    assert count_joins(engine, "runner", 10) == 10


@pytest.mark.chaos
@pytest.mark.usefixtures("_impatient_threads")
@pytest.mark.parametrize("kind", ["poller", "runner"])
def test_the_join_runs_once_in_1000_of_1000_trials(engine: Engine, kind: str) -> None:
    joins = count_joins(engine, kind, 1_000)
    print(f"\n{kind}: the join ran {joins} times in 1,000 trials")
    assert joins == 1_000
