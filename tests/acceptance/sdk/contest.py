"""Pollers and runner services, as processes, that compete for tasks while some are killed."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from flowengine.engine import Engine, Run
from flowengine.sdk import (
    AgentPoller,
    AgentPollerConfig,
    RunnerConfig,
    RunnerService,
    ToolRegistry,
)
from flowengine.settings import Settings
from tests.fork_server import context
from tests.integration.engines import one

WAIT = 300.0  #: seconds in which everything must be done
POLLER, RUNNER = "poller", "runner"
#: Of each run: how many of its tasks have a result, and how many have lost their process.
_TASKS = (
    "SELECT run_id, sum(CASE WHEN state = 'completed' THEN 1 ELSE 0 END), max(losses) "
    "FROM flowengine_task GROUP BY run_id"
)
INTERVALS: dict[str, Any] = {
    "watchdog_interval": 0.3,
    "heartbeat_interval": 1.0,
    "server_timeout": 4.0,
}


def settings_of(url: str, directory: Path) -> Settings:
    return Settings(database_url=url, spool_directory=str(directory / "spool"), **INTERVALS)


def compete(role: str, url: str, directory: Path) -> None:
    """Work until SIGTERM; each execution is a line of a file, written before its result."""
    log = os.open(directory / "executions", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        os.write(log, f"{payload['x']}\n".encode())
        return {"y": payload["x"]}

    settings = settings_of(url, directory)
    agent: AgentPoller | RunnerService
    if role == RUNNER:
        tools = ToolRegistry()
        tools.register("t.Work", work)
        config = RunnerConfig(
            heartbeat_interval_ms=1000, poll_interval_ms=200, http_max_port_attempts=0
        )
        agent = RunnerService.connect(url, config, tools, settings=settings)
    else:
        agent = AgentPoller.connect(
            url,
            AgentPollerConfig(heartbeat_interval_ms=1000, poll_interval_ms=200),
            settings=settings,
        )
        agent.register("t.Work", work)
        signal.signal(signal.SIGTERM, lambda *_: agent.stop())  # a runner handles it itself
    with agent:
        agent.start()


@dataclass
class Count:
    """The numbers of a contest."""

    tasks: int = 0
    executions: int = 0
    kills: int = 0
    losses: int = 0
    repeated: int = 0  #: executions beyond the first of their task
    unexplained: int = 0  #: of them, without a loss behind them
    seconds: float = 0.0
    killed: Counter[str] = field(default_factory=Counter)


class Contest:
    def __init__(self, url: str, directory: Path, pollers: int, runners: int) -> None:
        self._url, self._directory = url, directory
        self._roles = [*[POLLER] * pollers, *[RUNNER] * runners]
        self._processes = [self._started(role) for role in self._roles]

    def _started(self, role: str) -> Any:
        arguments = (role, self._url, self._directory)
        process = context.Process(target=compete, args=arguments, daemon=True)
        process.start()
        return process

    def executions(self) -> Counter[int]:
        path = self._directory / "executions"
        return Counter(map(int, path.read_text().split())) if path.exists() else Counter()

    def run(self, engine: Engine, tasks: int, kills: int, random: Random) -> Count:
        """Start runs of one task each, kill processes while they are worked on; count."""
        began, count = time.monotonic(), Count(tasks=tasks)
        runs = engine.start_many(one(), "t.Flow", [{"x": n} for n in range(tasks)])
        # By progress, not by time: a kill falls into work on any machine.
        # Each process once before any is killed again: runners are among the first.
        order = random.sample(range(len(self._roles)), len(self._roles))
        for turn, at in enumerate(sorted(random.sample(range(tasks * 9 // 10), kills))):
            self._wait_for(at)
            number = order[turn % len(order)]
            os.kill(self._processes[number].pid, signal.SIGKILL)
            self._processes[number].join(WAIT)
            count.killed[self._roles[number]] += 1
            self._processes[number] = self._started(self._roles[number])
        count.kills = kills
        results = [run.result(timeout=WAIT) for run in runs]
        assert results == [{"y": n} for n in range(tasks)]
        count.seconds = time.monotonic() - began
        self.stop()
        self._count_executions(engine, runs, count)
        return count

    def _wait_for(self, executions: int) -> None:
        ends = time.monotonic() + WAIT
        while sum(self.executions().values()) < executions:
            assert time.monotonic() < ends
            time.sleep(0.01)

    def _count_executions(self, engine: Engine, runs: list[Run[Any]], count: Count) -> None:
        executions = self.executions()
        with engine.database.read() as session:
            rows = session.rows(_TASKS, ())
        found = {run_id: (completed, losses) for run_id, completed, losses in rows}
        for number, run in enumerate(runs):
            completed, losses = found[run.id]
            assert completed == 1  # each result is recorded once
            count.losses += losses
            count.repeated += executions[number] - 1
            count.unexplained += max(0, executions[number] - 1 - losses)
        count.executions = sum(executions.values())

    def stop(self) -> None:
        for process in self._processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGTERM)
        for process in self._processes:
            process.join(60)
            if process.is_alive():
                process.kill()
                process.join()


def assert_nothing_is_left(engine: Engine, directory: Path) -> None:
    """No open task, no held lock, no report on the disk, no server that is not gone."""
    with engine.database.read() as session:
        assert session.recovery.pending_names() == set()
        boots = [server.boot_id for server in session.servers.alive()]
        assert session.recovery.held_by_boots(boots) == []
        rows = session.rows("SELECT key FROM flowengine_worklock", ())
        assert session.work_locks.held([key for (key,) in rows]) == {}
    assert list((directory / "spool").glob("*.json")) == []
