"""`flowengine -A proj.celery` and `celery -A proj flow` use the settings of the app."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from flowengine.testing import Flow
from tests.acceptance import commands
from tests.celery_nodes import GuardedProcess, clean_environment

APP = """
from celery import Celery
from flowengine.assembly import FlowEngine

app = Celery("proj", broker="memory://")
app.conf.update({configuration})
FlowEngine(app)
"""
FLOWS = """
from flowengine import event_facet, workflow
from proj.celery import app

@event_facet
def double(n: int) -> int:
    return 2 * n

@workflow
def doubled(n: int) -> int:
    return double(n)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    package = tmp_path / "proj"
    package.mkdir()
    (tmp_path / "data").mkdir()
    (package / "__init__.py").touch()
    configuration = "flowengine_database_url='sqlite:///data/app.db'"
    (package / "celery.py").write_text(APP.format(configuration=configuration))
    (package / "flows.py").write_text(FLOWS)
    (tmp_path / "bare.py").write_text(APP.format(configuration=""))
    (tmp_path / "plain.py").write_text(APP.format(configuration="").replace("FlowEngine(app)", ""))
    (tmp_path / "broken.py").write_text("import sys\nsys.nothing_of_this_name\n")
    (tmp_path / "empty.py").write_text("x = 1\n")
    return tmp_path


def flowengine(
    here: Path, *words: str, expect: int = 0, environment: Mapping[str, str] | None = None
) -> str:
    done = commands.flowengine(words, here, environment)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def databases(here: Path) -> list[str]:
    return sorted(str(path.relative_to(here)) for path in here.rglob("*.db"))


@pytest.mark.parametrize("app", ["proj", "proj.celery:app"])
def test_db_upgrade_upgrades_the_database_of_the_app(here: Path, app: str) -> None:
    assert "sqlite:///data/app.db upgraded" in flowengine(here, "-A", app, "db", "upgrade")
    assert databases(here) == ["data/app.db"]


def test_the_environment_precedes_the_app(here: Path) -> None:
    environment = {"FLOWENGINE_DATABASE_URL": "sqlite:///data/other.db", "FLOWENGINE_APP": "proj"}
    flowengine(here, "db", "upgrade", environment=environment)
    assert databases(here) == ["data/other.db"]


@pytest.mark.parametrize("app", ["bare", "plain"])
def test_db_upgrade_creates_no_file_for_an_app_that_names_no_database(here: Path, app: str) -> None:
    output = flowengine(here, "--app", app, "db", "upgrade", expect=1)
    assert f"the app {app} names no database: set flowengine_database_url" in output
    assert databases(here) == []


def test_a_run_is_started_on_the_database_of_the_app_and_resumed_there(here: Path) -> None:
    run_id = flowengine(
        here, "-A", "proj", "run", "proj.flows:doubled", "-i", "n=4", "--no-wait"
    ).strip()
    assert "RUNNING" in flowengine(here, "-A", "proj", "list")
    assert "doubled" in flowengine(here, "-A", "proj", "show", run_id)
    assert "result  8" in flowengine(here, "-A", "proj", "resume", "proj.flows")
    assert databases(here) == ["data/app.db"]
    assert "name the Celery app that has one with -A" in flowengine(here, "list", expect=1)


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        ("proj.nowhere", "there is no Celery app 'proj.nowhere': there is no module"),
        ("proj.celery:nothing", "'proj.celery:nothing': module 'proj.celery' has no 'nothing'; "),
        ("empty", "there is no Celery app 'empty': module 'empty' has none; name it as for "),
        ("broken", "broken.py:2: AttributeError: module 'sys' has no attribute"),
    ],
)
def test_an_app_that_cannot_be_used_is_an_error_in_one_sentence(
    here: Path, app: str, reason: str
) -> None:
    output = flowengine(here, "-A", app, "list", expect=1)
    assert output.startswith("Error: the")
    assert reason in output
    assert "Traceback" not in output
    assert databases(here) == []


def test_the_commands_are_among_those_of_celery(here: Path) -> None:
    def celery(*words: str) -> str:
        environment = {**clean_environment(), "COLUMNS": "100"}
        done = subprocess.run(
            ["celery", *words], cwd=here, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "sqlite:///data/app.db upgraded" in celery("-A", "proj", "flow", "db", "upgrade")
    assert json.loads(celery("-A", "proj", "flow", "list", "--json")) == []
    assert databases(here) == ["data/app.db"]


def test_python_m_flowengine_is_the_command_line(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flowengine", "list", "--help"],
        cwd=here,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Usage: python -m flowengine list [OPTIONS]")


def test_a_worker_without_a_broker_names_the_variable(here: Path) -> None:
    worker = GuardedProcess(
        [sys.executable, "-m", "celery", "-A", "flowengine", "worker", "-P", "solo"],
        name="worker",
        directory=here,
        environment={**clean_environment(), "FLOWENGINE_DATABASE_URL": "sqlite:///own.db"},
        ready_prompt="set FLOWENGINE_BROKER_URL (for example redis://localhost:6379/0)",
    )
    worker.start()  # fails if it does not say so
    worker.stop()


HELP = """
import sys
before = len(sys.modules)
from flowengine.cli import main
try:
    main({words})
except SystemExit:
    pass
heavy = "celery kombu redis sqlalchemy sqlmodel alembic psycopg rich lark flower".split()
print(len(sys.modules) - before, [name for name in heavy if name in sys.modules], file=sys.stderr)
"""


LIST = """
import sys
from flowengine.cli import main
try:
    main(["list"])
except SystemExit:
    pass
from sqlalchemy.orm import mapperlib
unused = (
    "celery kombu amqp billiard redis alembic lark flower textual psycopg yaml multiprocessing "
    "flowengine.engine.engine flowengine.engine.committer flowengine.evaluator.fixed_point "
    "flowengine.agents flowengine.worker flowengine.dispatch flowengine.assembly"
).split()
found = [name for name in unused if name in sys.modules]
mappers = [mapper for known in mapperlib._mapper_registries for mapper in known.mappers]
print(found, len(mappers), file=sys.stderr)
"""


def test_a_command_that_reads_runs_imports_nothing_that_changes_them(here: Path) -> None:
    url = f"sqlite:///{here}/read.db"
    with Flow(store_url=url):
        pass
    done = subprocess.run(
        [sys.executable, "-c", LIST],
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FLOWENGINE_DATABASE_URL": url},
    )
    assert done.stdout == "no runs\n"
    assert done.stderr == "[] 0\n", "and no table has a mapper"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_help_imports_neither_celery_nor_a_database(words: list[str], here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP.format(words=words)],
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
    )
    count, heavy = done.stderr.split(maxsplit=1)
    assert heavy.strip() == "[]"
    assert int(count) < 600, "with pydantic and click; Celery and SQLAlchemy add 700 more"
