"""The example project of Django: embedded on its SQLite file, and on Celery with PostgreSQL."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.acceptance.celery.conftest import QUICK_START
from tests.celery_nodes import LocalWorker
from tests.celery_nodes.fleet import PYTHONPATH, ROOT, clean_environment
from tests.celery_nodes.processes import GuardedProcess
from tests.servers import PostgresServer, RedisServer
from tests.warm import warm

PROJECT = ROOT / "examples" / "django_shop"


class Project:
    """The project with settings of its own, in a directory of its own."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.environment = {
            **clean_environment(),
            "SHOP_DIRECTORY": str(directory),
            "DJANGO_SETTINGS_MODULE": "shop_site.settings",
            "PYTHONPATH": os.pathsep.join((str(PROJECT), PYTHONPATH)),
            **environment,
        }
        self.directory = directory

    def run(self, *command: str, **environment: str) -> str:
        done = subprocess.run(
            warm("python", "-W", "error", *command),
            cwd=self.directory,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def manage(self, *command: str) -> str:
        return self.run(str(PROJECT / "manage.py"), *command)

    def check(self, name: str, **environment: str) -> None:
        assert self.run("-m", "tests.acceptance.django.checks", name, **environment).endswith(
            "all held\n"
        )


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("shop"))
    project.manage("migrate", "--verbosity", "0")
    return project


@pytest.fixture
def on_celery(
    postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path
) -> Iterator[Project]:
    url = make_url(postgres.new_database())
    project = Project(
        tmp_path,
        SHOP_DATABASE=url.database or "",
        SHOP_DATABASE_HOST=str(url.query.get("host", url.host or "")),
        SHOP_DATABASE_USER=url.username or "",
        SHOP_BROKER=redis_server.url,
    )
    project.manage("migrate", "--verbosity", "0")
    process = GuardedProcess(
        LocalWorker.command(*QUICK_START, "--beat", "--concurrency=2", app="shop_site"),
        name="worker",
        directory=tmp_path / "worker",
        environment=project.environment,
        ready_prompt="ready.",
    )
    process.start()
    yield project
    process.stop()


def test_an_order_and_its_run_are_committed_together_in_one_process(embedded: Project) -> None:
    for _ in range(2):
        said = embedded.manage("order", "ada@example.org", "1200")
        assert re.fullmatch(r"mail to ada@example.org with receipt-1200-\w{6}\n", said)
    assert embedded.manage("flowengine", "list").count("COMPLETED") >= 2
    embedded.check("joined")


def test_an_order_is_fulfilled_by_a_celery_worker(on_celery: Project) -> None:
    said = on_celery.manage("order", "ada@example.org", "1200")
    assert said.startswith("mail to ada@example.org")
    on_celery.check("joined")


def test_a_run_in_another_database_is_started_after_the_commit(embedded: Project) -> None:
    other = f"sqlite:///{embedded.directory / 'runs.db'}"
    embedded.check("deferred", FLOWENGINE_DATABASE_URL=other)


def test_the_model_of_runs_has_the_columns_of_their_table(embedded: Project) -> None:
    embedded.check("columns")


def test_runs_are_read_only_in_the_admin(embedded: Project) -> None:
    embedded.check("admin")


def test_an_unknown_key_of_the_settings_is_named(tmp_path: Path) -> None:
    script = (
        "from django.conf import settings; settings.FLOWENGINE = {'TENNANT': 'shop'}\n"
        "from flowengine.contrib.django.project import project_settings\n"
        "from django.core.exceptions import ImproperlyConfigured\n"
        "try: project_settings()\n"
        "except ImproperlyConfigured as problem: print(problem)"
    )
    assert "unknown key 'TENNANT'" in Project(tmp_path).run("-c", script)
