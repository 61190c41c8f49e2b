"""An app with a network broker names its database; each of its processes says which one it has."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from flowengine.errors import StoreError
from tests.acceptance import commands
from tests.celery_nodes import Fleet, GuardedProcess, LocalRedis, clean_environment, until
from tests.celery_nodes.fleet import INTERVALS
from tests.servers import PostgresServer, RedisServer

APP = """
from celery import Celery
from flowengine import event_facet, workflow
from flowengine.assembly import FlowEngine

app = Celery("shop", broker="{broker}")
app.conf.broker_transport_options = {options}
app.conf.broker_connection_retry_on_startup = True
FlowEngine(app)

@event_facet(task_list="gpu")
def double(n: int) -> int:
    return 2 * n

@workflow
def doubled(n: int) -> int:
    return double(n)
"""
REFUSED = "the app shop names no database: set flowengine_database_url in its configuration, or "
START = "import shop; print(shop.doubled.start(4).id)"
HOST = socket.gethostname()
WITHOUT = {"FLOWENGINE_DATABASE_URL": ""}


def project(directory: Path, broker: str, options: Mapping[str, str] | None = None) -> Path:
    (directory / "shop.py").write_text(APP.format(broker=broker, options=dict(options or {})))
    return directory


def run(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=here,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


def databases(here: Path) -> list[str]:
    return [path.name for path in here.glob("*.db")]


@pytest.mark.parametrize("words", ["worker", "worker --beat", "beat"])
def test_a_worker_or_beat_without_a_database_is_refused(words: str, tmp_path: Path) -> None:
    here = project(tmp_path, "redis://:geheim@localhost:1/0")
    refused = run(here, "-m", "celery", "-A", "shop", *words.split())
    assert refused.returncode == 1
    assert f"Error: {REFUSED}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert databases(here) == []


def test_a_client_without_a_database_is_refused(tmp_path: Path) -> None:
    here = project(tmp_path, "amqp://localhost:1//")
    refused = run(here, "-c", START)
    assert refused.returncode == 1
    assert f"{StoreError.__name__}: {REFUSED}" in refused.stderr
    assert databases(here) == []


@pytest.mark.parametrize("words", ["list", "run shop:doubled -i n=4 --no-wait", "db upgrade"])
def test_a_command_for_an_app_without_a_database_is_refused(words: str, tmp_path: Path) -> None:
    here = project(tmp_path, "redis://localhost:1/0")
    done = commands.flowengine(["-A", "shop", *words.split()], here, WITHOUT)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"Error: {REFUSED}" in done.stderr
    assert databases(here) == []


def test_an_app_with_a_local_broker_uses_the_file_of_its_directory(tmp_path: Path) -> None:
    folders = {f"data_folder_{way}": str(tmp_path) for way in ("in", "out")}
    here = project(tmp_path, "filesystem://", folders)
    started = run(here, "-c", START)
    assert started.returncode == 0, started.stderr
    assert databases(here) == ["flowengine.db"]
    worker = GuardedProcess(
        [sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "solo"],
        name="worker",
        directory=here,
        environment={**clean_environment(), **INTERVALS},
        ready_prompt=(
            f"worker celery@{HOST}: database sqlite:///flowengine.db, broker "
            "filesystem://, task lists celery, default, flowengine, gpu"
        ),
    )
    worker.start()
    try:
        listed = ["-A", "shop", "list", "--state", "completed"]
        until(
            lambda: started.stdout.strip()[:8] in commands.flowengine(listed, here, WITHOUT).stdout,
            "the end of the run",
        )
    finally:
        worker.stop()


def test_each_start_names_database_broker_and_task_lists_without_passwords(
    postgres: PostgresServer, shared_redis: RedisServer, tmp_path: Path
) -> None:
    database = postgres.new_database()
    secret = f"{database}{'&' if '?' in database else '?'}application_name=shop&password=geheim"
    broker = LocalRedis(shared_redis)
    fleet = Fleet(tmp_path, broker=broker, backend=None, database_url=database)
    content = {"shop.py": APP.format(broker=broker.url, options={}).encode()}
    fleet.environment["FLOWENGINE_DATABASE_URL"] = secret
    try:
        worker = fleet.add_worker("w", app="shop", content=content)
        beat = fleet.add_beat(app="shop", content=content)
        shown = secret.replace("geheim", "***")
        line = f"database {shown}, broker {broker.url}, task lists "
        assert f"worker w@{HOST}: {line}celery, default, flowengine, gpu" in worker.logs()
        until(lambda: f"beat of app shop: {line}flowengine" in beat.logs(), "the line of the beat")
        assert "geheim" not in fleet.logs()
    finally:
        fleet.close()
        postgres.drop_database(database)
