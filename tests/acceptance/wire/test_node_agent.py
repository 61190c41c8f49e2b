"""An agent in JavaScript as a process: it works, is killed, returns late, outlives its server."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.engine import Engine
from tests.celery_nodes import GuardedProcess, clean_environment
from tests.celery_nodes.fleet import INTERVALS, until
from tests.integration.engines import one, opened
from tests.servers import PostgresServer

HERE = Path(__file__).parent
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
Start = Callable[[], GuardedProcess]


class Site:
    """A database, processes of `flowengine api`, and agents."""

    def __init__(self, url: str, folder: Path, engine: Engine) -> None:
        self.folder, self.engine = folder, engine
        self._started: list[GuardedProcess] = []
        self._token, _ = engine.tokens.create("node", ["claim"])
        self._environment = {
            **clean_environment(),
            **INTERVALS,
            "FLOWENGINE_DATABASE_URL": url,
            "FLOWENGINE_SPOOL_DIRECTORY": str(folder / "spool"),
            "TRACES": str(folder),
        }
        self.port = 0

    def _start(self, command: list[Any], ready: str, **environment: str) -> GuardedProcess:
        name = f"process-{len(self._started)}"
        process = GuardedProcess(
            command,
            name=name,
            directory=self.folder / name,
            environment={**self._environment, **environment},
            ready_prompt=ready,
        )
        self._started.append(process)
        process.start()
        return process

    def serve(self) -> GuardedProcess:
        command = [sys.executable, "-m", "flowengine", "api", "--port", str(self.port)]
        server = self._start(command, "listening on ")
        log = server.recent_log()
        self.port = int(log.partition("listening on http://127.0.0.1:")[2].split()[0])
        return server

    def agent(self) -> GuardedProcess:
        address = {"FLOWENGINE_URL": f"http://127.0.0.1:{self.port}"}
        command = [NODE, HERE / "worker.mjs"]
        return self._start(command, "server ", FLOWENGINE_TOKEN=self._token, **address)

    def begun(self) -> list[Path]:
        return sorted(self.folder.glob("begun-*"))

    def stop(self) -> None:
        for process in self._started:
            process.stop()


@pytest.fixture
def site(postgres: PostgresServer, with_schema: str, tmp_path: Path) -> Iterator[Site]:
    url = postgres.new_database(with_schema)
    with opened(url) as engine:
        site = Site(url, tmp_path, engine)
        yield site
        site.stop()
    postgres.drop_database(url)


def test_the_task_of_a_killed_agent_is_run_by_another(site: Site) -> None:
    run = site.engine.start(one(), "t.Flow", {"x": "a"})
    site.serve()
    first = site.agent()
    until(site.begun, "the first try")
    first.kill("SIGKILL")
    second = site.agent()
    (site.folder / "go").touch()
    assert run.result(timeout=60) == {"y": second.pid}
    assert site.engine.tasks(run.id)[-1].losses == 1
    failing = site.engine.start(one(), "t.Flow", {"x": "fail"})
    until(lambda: site.engine.get(failing.id).is_final, "the error of the agent")
    error = site.engine.get(failing.id).error
    assert error is not None
    assert (error["type"], error["message"]) == ("TypeError", "it does not fit")
    second.send(signal.SIGTERM)
    until(lambda: "stopped" in second.recent_log(), "the end of the second agent")
    assert site.engine.servers() == []


@pytest.mark.chaos  # in Python: test_tasks.py
def test_an_agent_that_returns_late_is_refused_and_goes_on(site: Site) -> None:
    """Stopped, it is taken for dead; then it reports under a lease that another has replaced."""
    run = site.engine.start(one(), "t.Flow", {"x": "a"})
    site.serve()
    first = site.agent()
    until(site.begun, "the first try")
    first.send(signal.SIGSTOP)
    second = site.agent()
    until(lambda: len(site.begun()) == 2, "the try of the second agent")
    (site.folder / f"go-{first.pid}").touch()
    first.send(signal.SIGCONT)
    until(lambda: "lease_lost" in first.recent_log(), "the refusal")
    (site.folder / "go").touch()
    assert run.result(timeout=60) == {"y": second.pid}
    assert [task.losses for task in site.engine.tasks(run.id)][-1] == 1
    second.send(signal.SIGTERM)
    until(lambda: "stopped" in second.recent_log(), "the end of the second agent")
    again = site.engine.start(one(), "t.Flow", {"x": "b"})
    assert again.result(timeout=60) == {"y": first.pid}


@pytest.mark.chaos
def test_an_agent_outlives_the_server_and_reports_to_the_next_one(site: Site) -> None:
    run = site.engine.start(one(), "t.Flow", {"x": "a"})
    server = site.serve()
    agent = site.agent()
    until(site.begun, "the try")
    server.kill("SIGKILL")
    (site.folder / "go").touch()
    until(lambda: "again soon" in agent.recent_log(), "the report without a server")
    site.serve()
    assert run.result(timeout=60) == {"y": agent.pid}
    assert [task.losses for task in site.engine.tasks(run.id)] == [0]
