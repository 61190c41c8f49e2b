"""An existing project on Celery, made durable as the guide says: examples/celery_shop."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.celery.conftest import QUICK_START
from tests.celery_nodes import LocalWorker, until
from tests.celery_nodes.fleet import INTERVALS, PYTHONPATH, ROOT, clean_environment
from tests.celery_nodes.processes import GuardedProcess
from tests.servers import PostgresServer, RedisServer
from tests.warm import warm

PROJECT = ROOT / "examples" / "celery_shop"
PAID = "mail: {} paid 3050 (charge)\n"


class Project:
    """The shop in a directory of its own."""

    def __init__(self, directory: Path, redis: str, database: str, project: Path = PROJECT) -> None:
        self.directory = directory
        self.environment = {
            **clean_environment(),
            **INTERVALS,
            "PYTHONPATH": os.pathsep.join((str(project), PYTHONPATH)),
            "SHOP_REDIS": redis,
            "FLOWENGINE_DATABASE_URL": database,
        }

    def python(self, *arguments: str) -> str:
        done = subprocess.run(
            warm("python", "-W", "error", *arguments),
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def worker(self, app: str, *arguments: str) -> GuardedProcess:
        process = GuardedProcess(
            LocalWorker.command(*QUICK_START, *arguments, app=app),
            name=app,
            directory=self.directory,
            environment=self.environment,
            ready_prompt="ready.",
        )
        process.start()
        return process


@pytest.fixture
def project(postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path) -> Project:
    return Project(tmp_path, redis_server.url.rpartition("/")[0], postgres.new_database())


@pytest.fixture
def start_worker(project: Project) -> Iterator[Callable[..., GuardedProcess]]:
    started: list[GuardedProcess] = []

    def start(*arguments: str) -> GuardedProcess:
        started.append(project.worker(*arguments))
        return started[-1]

    yield start
    for process in started:
        process.stop()


def test_no_task_of_the_project_has_changed() -> None:
    before, after = ((PROJECT / f"{name}.py").read_text() for name in ("before", "after"))
    tasks, _, _ = before[before.index("@app.task") :].partition("def place_order")
    assert tasks in after


@pytest.mark.chaos
def test_an_order_of_the_old_project_is_paid_for(
    project: Project, start_worker: Callable[..., GuardedProcess]
) -> None:
    start_worker("before", "-Q", "celery,payments")
    ask = "import before; print(before.place_order('ada', ['kettle', 'cup']).get(timeout=60))"
    assert project.python("-c", ask) == PAID.format("ada")


def test_an_order_of_the_new_project_survives_the_death_of_its_worker(
    project: Project, start_worker: Callable[..., GuardedProcess]
) -> None:
    project.python("-m", "flowengine", "-A", "after", "db", "upgrade")
    worker = start_worker("after", "-Q", "celery,payments,flowengine", "--beat")
    start = "import after; print(after.place_order('bob', ['kettle', 'cup']).id)"
    run = project.python("-c", start).strip()
    until((project.directory / "bob.called").exists, "the first call of the bank")
    left = worker.children()  # pool children end with their parent, the beat does not
    worker.kill()
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    worker.start()
    read = f"import after; print(after.app.flowengine.engine.run('{run}').result(timeout=60))"
    assert project.python("-c", read) == PAID.format("bob")
