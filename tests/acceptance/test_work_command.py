"""`flowengine init` makes a project that runs; `flowengine work` serves a folder until a signal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowengine.cli import main
from flowengine.cli.init_command import FILES
from flowengine.store import Database, ensure_schema
from tests.acceptance.commands import flowengine
from tests.celery_nodes import GuardedProcess, RestartablePostgres, clean_environment
from tests.celery_nodes.fleet import until
from tests.integration.engines import opened

SLOW = """
import time
from pathlib import Path

from flowengine import event_facet, workflow

@event_facet
def hold() -> str:
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    return "held"

@event_facet
def tick() -> None:
    pass

@workflow
def ticked() -> None:
    tick()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = CliRunner().invoke(main, ["init", str(tmp_path / "shop")])
    assert made.exit_code == 0, made.output
    return tmp_path / "shop"


# --- init ---


def test_a_new_project_is_checked_and_runs(project: Path) -> None:
    checked = flowengine(["check"], project)
    assert checked.stdout == "✓ 1 workflow, 2 facets: no problems\n", checked.stderr
    ran = flowengine(["run", "workflows/hello.yml", "-i", "name=Ada"], project)
    assert 'result  "Hello, Ada! (2 words)"' in ran.stdout, ran.stderr


def test_init_overwrites_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("facets.py").write_text("mine = True\n")
    first = CliRunner().invoke(main, ["init"]).output
    assert first.splitlines()[:2] == ["kept     facets.py", "created  workflows/hello.yml"]
    assert Path("facets.py").read_text() == "mine = True\n"
    again = CliRunner().invoke(main, ["init"]).output
    assert again.count("kept") == len(FILES)
    refused = CliRunner().invoke(main, ["init", "facets.py"])
    assert (refused.exit_code, "is a file" in refused.output) == (1, True)


# --- the file of the project ---


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("concurency = 2", "there is no setting 'concurency'; did you mean 'concurrency'?"),
        ("mcp_token = 'a'", "mcp_token is secret, and a file of a project is shared: set FLOW"),
        ("workflows = ['a']", "workflows must be a text, a number, or true or false"),
        ("workflows = ", "flowengine.toml cannot be read:"),
        ("max_tasks = -1", "flowengine.toml: max_tasks = -1 is not 0 or greater"),
        ("concurrency = 'x'", "flowengine.toml: concurrency = x is not a whole number"),
        (f"workflows = '{'x' * 70_000}'", "has more than 64 KiB"),
    ],
)
def test_a_wrong_file_of_a_project_is_refused_with_the_reason(
    content: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flowengine.toml").write_text(content)
    ended = CliRunner().invoke(main, ["list"])
    assert (ended.exit_code, problem in ended.output) == (1, True), ended.output


def test_a_missing_folder_that_the_settings_name_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flowengine.toml").write_text("workflows = 'missing'\n")
    ended = CliRunner().invoke(main, ["check"])
    assert (ended.exit_code, "no folder missing of documents" in ended.output) == (1, True)
    Path("missing").mkdir()  # an empty folder is one of documents, too
    assert CliRunner().invoke(main, ["check"]).exit_code == 0


# --- work ---


@pytest.fixture
def worker(project: Path) -> Iterator[GuardedProcess]:
    (project / "facets.py").write_text(SLOW)
    (project / "workflows" / "hello.yml").write_text("tasks: {hold: {call: facets.hold}}\n")
    ticking = "schedule: {every: 1s}\ntasks: {tick: {call: facets.tick}}\n"
    (project / "workflows" / "ticking.yml").write_text(ticking)
    command = f"cd {project} && exec {sys.executable} -m flowengine work --name io@vm --tasks 2"
    process = GuardedProcess(
        ["bash", "-c", command],
        name="work",
        directory=project / "log",
        environment=clean_environment(),
        ready_prompt="worker io@vm serves",
    )
    process.start()
    yield process
    process.stop()


def test_a_folder_is_served_until_a_signal_and_what_runs_is_finished(
    project: Path, worker: GuardedProcess
) -> None:
    with opened(f"sqlite:///{project}/flowengine.db") as engine:
        until(lambda: engine.list(workflow="ticking", state="COMPLETED"), "a run by the clock")
        by_name = engine.start("facets.ticked")  # the code is the worker's
        until(
            lambda: engine.get(by_name.id).state == "COMPLETED", "the run of a workflow in Python"
        )
        started = flowengine(["start", "hello"], project)
        assert started.returncode == 0, started.stderr
        until((project / "begun").exists, "the start of the step")
        (info,) = engine.workers.list()
        assert (info.name, info.max_tasks, 1 <= info.tries <= 2) == ("io@vm", 2, True)
        worker.send(signal.SIGTERM)
        until(lambda: "SIGTERM" in worker.recent_log(), "the signal")
        assert engine.get(started.stdout.strip()).state == "RUNNING"
        (project / "go").touch()
        until(lambda: "worker io@vm has ended" in worker.recent_log(), "the end of the worker")
        assert engine.get(started.stdout.strip()).state == "COMPLETED"
        assert engine.workers.list() == []


@pytest.mark.chaos
def test_a_worker_that_is_alone_for_too_long_ends_with_1(project: Path) -> None:
    server = RestartablePostgres()
    url = server.new_database()
    database = Database(url)
    ensure_schema(database, upgrade=True)
    database.close()
    process = GuardedProcess(
        ["bash", "-c", f"cd {project} && exec {sys.executable} -m flowengine work"],
        name="work",
        directory=project / "log",
        environment={
            **clean_environment(),
            "FLOWENGINE_DATABASE_URL": url,
            "FLOWENGINE_ALONE_PATIENCE": "1",
        },
        ready_prompt="serves",
    )
    try:
        process.start()
        server.go_away()
        assert process.wait(60) == 1
        assert "longer than alone_patience" in process.recent_log()
    finally:
        process.stop()
        server.stop()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere"], "there is no folder nowhere of documents"),
        (["--tasks", "0"], "0 is not in the range 1<=x<="),
    ],
)
def test_a_worker_that_cannot_start_says_why(
    words: list[str], problem: str, tmp_path: Path
) -> None:
    ended = flowengine(["work", *words], tmp_path)
    assert ended.returncode != 0
    assert problem in ended.stderr
