"""pytest-celery's own fixtures drive real processes, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from pytest_celery import CeleryTestSetup, RedisTestBackend, RedisTestBroker

from tests.celery_nodes import LocalWorker, clean_environment, until


def test_a_setup_is_made_of_the_plugins_nodes_around_real_processes(
    celery_setup: CeleryTestSetup,
) -> None:
    assert isinstance(celery_setup.broker, RedisTestBroker)
    assert isinstance(celery_setup.backend, RedisTestBackend)
    assert celery_setup.ready(ping=False, control=True, docker=True)
    worker: LocalWorker = celery_setup.worker.container
    assert (worker.directory / "app.py").exists(), "the plugin's files are in its directory"
    assert len(worker.children()) == 2
    running = celery_setup.worker.get_running_processes_info(["pid", "name"])
    assert {worker.pid, *worker.children()} <= {process["pid"] for process in running}
    (registered,) = celery_setup.app.control.inspect(timeout=1).registered().values()
    assert {"flowengine.drain", "flowengine.watchdog", "flowengine.execute"} <= set(registered)
    assert "tests.acceptance.celery.graphs.add" in registered

    celery_setup.worker.kill()
    assert not worker.is_alive()
    celery_setup.worker.restart()
    assert worker.is_alive()
    assert celery_setup.ready(control=True)


def test_a_broker_restarts_empty_at_the_same_address(celery_broker: RedisTestBroker) -> None:
    with celery_broker.container.client as client:
        client.set("mark", 1)
        address = celery_broker.container.url
        celery_broker.restart()
        assert celery_broker.container.url == address
        assert client.get("mark") is None


HOLDER = """
import sys, time
from pathlib import Path
from tests.celery_nodes import GuardedProcess
process = GuardedProcess(
    [sys.executable, "-c", "import os, time; os.fork(); print('up', flush=True); time.sleep(600)"],
    name="sleeper", directory=Path(sys.argv[1]), environment={}, ready_prompt="up",
)
process.start()
print(process.pid, *process.children(), flush=True)
time.sleep(600)
"""


def test_a_process_does_not_outlive_a_killed_pytest(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "sleeper")],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout
    pids = [int(word) for word in holder.stdout.readline().split()]
    assert len(pids) == 2
    assert all(psutil.pid_exists(pid) for pid in pids)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "their end", seconds=10)


STARTS_RABBIT_AND_WAITS = """
from tests.servers import RabbitServer
rabbit = RabbitServer()
print(rabbit.directory, rabbit.mapper_directory, flush=True)
input()
"""


@pytest.mark.chaos  # for the seconds that it takes to start
def test_a_killed_test_run_leaves_no_rabbitmq_behind() -> None:
    # A guard removes the directory after its server has ended, so its absence says that both
    # are gone. The port mapper has a guard of its own.
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_RABBIT_AND_WAITS],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        directories = [Path(name) for name in run.stdout.readline().split()]
        assert [directory.exists() for directory in directories] == [True, True]
        os.kill(run.pid, signal.SIGKILL)
    until(lambda: not any(directory.exists() for directory in directories), "their end")
