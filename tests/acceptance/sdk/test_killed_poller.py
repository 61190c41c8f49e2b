"""A poller that is killed: another one runs its task."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.celery_nodes import GuardedProcess, clean_environment
from tests.celery_nodes.fleet import INTERVALS, until
from tests.integration.engines import one, opened

StartAgent = Callable[[str], GuardedProcess]


@pytest.fixture
def start_agent(database_url: str, tmp_path: Path) -> Iterator[StartAgent]:
    started: list[GuardedProcess] = []
    environment = {
        **clean_environment(),
        **INTERVALS,
        "FLOWENGINE_DATABASE_URL": database_url,
        "FLOWENGINE_SPOOL_DIRECTORY": str(tmp_path / "spool"),
        "TRACES": str(tmp_path),
    }

    def start(name: str) -> GuardedProcess:
        process = GuardedProcess(
            [sys.executable, "-m", "tests.acceptance.sdk.agent"],
            name=name,
            directory=tmp_path / name,
            environment=environment,
            ready_prompt="server ",
        )
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.stop()


def test_the_task_of_a_killed_poller_is_run_by_another(
    database_url: str, tmp_path: Path, start_agent: StartAgent
) -> None:
    with opened(database_url) as engine:
        run = engine.start(one(), "t.Flow", {})
        first = start_agent("first")
        until(lambda: list(tmp_path.glob("begun-*")), "the first try")
        second = start_agent("second")
        first.kill("SIGKILL")
        (tmp_path / "go").touch()
        assert run.result(timeout=60) == {"y": second.pid}
        assert engine.tasks(run.id)[-1].losses == 1
        assert len(list(tmp_path.glob("begun-*"))) == 2

        second.send(signal.SIGTERM)
        until(lambda: "stopped" in second.recent_log(), "the end of the second")
        with engine.database.read() as session:
            assert session.servers.alive() == []  # dead, and deregistered
