"""Tasks of Celery as steps of real workers: limits, cancellation, and messages of former tasks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.celery.test_existing_project import Project
from tests.celery_nodes import until
from tests.celery_nodes.processes import GuardedProcess
from tests.servers import PostgresServer, RedisServer

APP = '''
import os, time
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.exceptions import SoftTimeLimitExceeded
from flowengine import event_facet, workflow
from flowengine.assembly import FlowEngine

REDIS = os.environ["SHOP_REDIS"]
app = Celery("limits", broker=f"{REDIS}/0", backend=f"{REDIS}/1")
app.conf.update(broker_connection_retry_on_startup=True, worker_prefetch_multiplier=1)
app.conf.beat_schedule = {
    "nightly": {"task": "limits.nightly", "schedule": 0.5, "kwargs": {"day": "of the beat"}},
}
FlowEngine(app)


def note(line):
    with open("seen.txt", "a") as opened:
        opened.write(line + "\\n")


@signals.task_failure.connect
def failed(sender, exception, task_id, **_):
    note(f"{sender.name} {type(exception).__name__}")


@signals.task_revoked.connect
def revoked(sender, request, terminated, **_):
    note(f"{sender.name} revoked {terminated}")


@app.task(name="limits.stubborn", soft_time_limit=0.5, time_limit=3)
def stubborn():
    """Goes on after the soft limit, as if its cleanup hung."""
    try:
        time.sleep(60)
    except SoftTimeLimitExceeded:
        note("soft")
    time.sleep(60)


@app.task(name="limits.endless")
def endless():
    note("endless begins")
    time.sleep(60)


stubborn_step, endless_step = event_facet(stubborn), event_facet(endless)


@workflow(name="limits.hang")
def hang() -> Any:
    return stubborn_step()


@workflow(name="limits.wait")
def wait() -> Any:
    return endless_step()


@event_facet(name="limits.write")
def write(day: str) -> str:
    note(f"night {day}")
    return day


@workflow(name="limits.nightly")
def nightly(day: str = "today") -> str:
    return write(day)
'''


@pytest.fixture
def project(postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path) -> Project:
    redis_server.flush()
    (tmp_path / "limits.py").write_text(APP)
    address = redis_server.url.rpartition("/")[0]
    project = Project(tmp_path, address, postgres.new_database(), tmp_path)
    project.environment["FLOWENGINE_CANCEL_GRACE"] = "1"
    project.python("-m", "flowengine", "-A", "limits", "db", "upgrade")
    return project


def seen(project: Project) -> list[str]:
    path = project.directory / "seen.txt"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def running(project: Project) -> Iterator[GuardedProcess]:
    process = project.worker("limits", "--beat", "--concurrency", "2")
    yield process
    process.stop()


def test_only_the_hard_limit_kills_and_it_is_a_failure_of_the_task(
    project: Project, running: GuardedProcess
) -> None:
    before = set(running.children())
    project.python("-c", "import limits; limits.hang.start()")
    until(lambda: "soft" in seen(project), "the soft limit")
    assert set(running.children()) == before
    until(lambda: "limits.stubborn TimeLimitExceeded" in seen(project), "the hard limit")
    until(
        lambda: "FAILED" in project.python("-m", "flowengine", "list", "--workflow", "limits.hang"),
        "the end of the run",
    )
    assert seen(project).count("soft") == 1
    assert not any("flowengine." in line for line in seen(project))


def test_a_cancelled_try_that_is_killed_is_a_revoked_task(
    project: Project, running: GuardedProcess
) -> None:
    run = project.python("-c", "import limits; print(limits.wait.start().id)").strip()
    until(lambda: "endless begins" in seen(project), "the step")
    project.python("-m", "flowengine", "cancel", run)
    until(lambda: "limits.endless revoked True" in seen(project), "the signal")


def test_old_messages_of_a_task_that_became_a_workflow_start_one_run_each(
    project: Project, running: GuardedProcess
) -> None:
    message = uuid.uuid4().hex
    send = (
        "import os; from celery import Celery\n"
        'client = Celery(broker=os.environ["SHOP_REDIS"] + "/0")\n'
        f'for _ in range(2): client.send_task("limits.nightly", ("sent",), task_id="{message}")\n'
        'client.send_task("limits.nightly")'
    )
    project.python("-c", send)
    wanted = {"night sent", "night today", "night of the beat"}
    until(lambda: wanted <= set(seen(project)), "the runs")
    listed = project.python("-m", "flowengine", "list", "--workflow", "limits.nightly", "--json")
    assert listed.count(message) == 1
    assert seen(project).count("night sent") == 1
