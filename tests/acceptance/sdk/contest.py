"""Pollers and runner services, as processes, that compete for tasks while some are killed."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from flowengine import current_step
from flowengine.engine import Engine, Run
from flowengine.program.nodes import FacetDeclaration, StepRef
from flowengine.sdk import (
    AgentPoller,
    AgentPollerConfig,
    RunnerConfig,
    RunnerService,
    ToolRegistry,
)
from flowengine.settings import Settings
from tests.fork_server import context
from tests.integration.engines import X, call, event_facet, one, program, workflow

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


def one_workflow() -> list[FacetDeclaration]:
    """The workflow of `one`, for another namespace."""
    steps = [call("a", "Work", x=X)]
    return [workflow(steps, {"y": StepRef(("a", "y"))})]


def settings_of(url: str, directory: Path) -> Settings:
    return Settings(database_url=url, spool_directory=str(directory / "spool"), **INTERVALS)


def compete(role: str, url: str, directory: Path) -> None:
    """Work until SIGTERM; each execution is a line of a file, written before its result.

    Tasks of the namespace `slow` are claimed one by one, those of `t` in batches.
    """
    log = os.open(directory / "executions", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        os.write(log, f"{payload['x']} {os.getpid()}\n".encode())
        if current_step().facet == "slow.Work":
            time.sleep(0.02)
        return {"y": payload["x"]}

    settings = settings_of(url, directory)
    agent: AgentPoller | RunnerService
    if role == RUNNER:
        tools = ToolRegistry()
        tools.register("Work", work)
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
        agent.register("Work", work)
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
        (directory / "executions").touch()
        self._read, self._executions = 0, list[tuple[int, int]]()
        self._roles = [*[POLLER] * pollers, *[RUNNER] * runners]
        self._processes = [self._started(role) for role in self._roles]

    def _started(self, role: str) -> Any:
        arguments = (role, self._url, self._directory)
        process = context.Process(target=compete, args=arguments, daemon=True)
        process.start()
        return process

    def executions(self) -> list[tuple[int, int]]:
        """Return the number of the task and the process of each execution."""
        with open(self._directory / "executions") as file:
            file.seek(self._read)
            lines = file.read()
        self._read += len(lines)
        new = map(str.split, lines.splitlines())
        self._executions += [(int(number), int(pid)) for number, pid in new]
        return self._executions

    def run(self, engine: Engine, tasks: int, kills: int, random: Random) -> Count:
        """Start runs of one task each, in waves; in each wave kill a process that works."""
        began, count = time.monotonic(), Count(tasks=tasks)
        runs: dict[int, Run[Any]] = {}
        wave = tasks // kills
        for first in range(0, tasks, wave):
            before = len(self.executions())
            runs |= self._start(engine, range(first, first + wave))
            number = self._victim(before, random.randrange(wave // 2), random)
            os.kill(self._processes[number].pid, signal.SIGKILL)
            self._processes[number].join(WAIT)
            count.killed[self._roles[number]] += 1
            self._processes[number] = self._started(self._roles[number])
        count.kills = kills
        results = {number: run.result(timeout=WAIT) for number, run in runs.items()}
        assert results == {number: {"y": number} for number in range(tasks)}
        count.seconds = time.monotonic() - began
        self.stop()
        self._count_executions(engine, runs, count)
        return count

    def _start(self, engine: Engine, numbers: range) -> dict[int, Run[Any]]:
        slow = program(event_facet("Work"), *one_workflow(), namespace="slow")
        runs: dict[int, Run[Any]] = {}
        for each, name, some in (
            (slow, "slow.Flow", numbers[1::2]),
            (one(), "t.Flow", numbers[::2]),
        ):
            started = engine.start_many(each, name, [{"x": n} for n in some])
            runs |= dict(zip(some, started, strict=True))
        return runs

    def _victim(self, before: int, more: int, random: Random) -> int:
        """Wait for some executions; return a process that has worked since `before`."""
        ends = time.monotonic() + WAIT
        while True:
            executions = self.executions()
            pids = {pid for _, pid in executions[before:]}
            working = [n for n, process in enumerate(self._processes) if process.pid in pids]
            if len(executions) > before + more and working:
                return random.choice(working)
            assert time.monotonic() < ends
            time.sleep(0.002)

    def _count_executions(self, engine: Engine, runs: Mapping[int, Run[Any]], count: Count) -> None:
        executions = Counter(number for number, _ in self.executions())
        with engine.database.read() as session:
            rows = session.rows(_TASKS, ())
        found = {run_id: (completed, losses) for run_id, completed, losses in rows}
        for number, run in runs.items():
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
