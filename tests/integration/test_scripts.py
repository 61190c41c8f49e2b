"""Scripts run in their own process, with time and memory limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowengine.assembly.embedded import Embedded
from flowengine.engine import Engine
from flowengine.errors import InvalidProgram, ScriptFailed
from flowengine.evaluator.triggers import Succeeded
from flowengine.program.standard import SCRIPT, SCRIPT_LIST
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.script_runner import run_script
from tests.builders import block, facet, of, program, step, to, workflow
from tests.registries import empty_registry

MEGABYTE = 1024 * 1024


def run(code: str, params: dict[str, Any] | None = None, seconds: float = 10) -> dict[str, Any]:
    return run_script(code, params or {}, seconds=seconds, size=256 * MEGABYTE)


def test_a_script_reads_its_parameters_and_fills_the_result() -> None:
    assert run("result['y'] = sum(params['xs'])", {"xs": [1, 2]}) == {"y": 3}


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
        ("import os", "__import__ not found"),
        ("open('/etc/passwd')", "name 'open' is not defined"),
        ("result['y'] = {1}", "not JSON serializable"),
        ("result['y'] = float('nan')", "not JSON compliant"),
        ("result['y'] = 'x' * (1024 ** 3)", "it used too much memory"),
    ],
)
def test_a_failed_script_reports_its_error(code: str, problem: str) -> None:
    with pytest.raises(ScriptFailed, match=problem):
        run(code)


def test_a_script_that_exceeds_its_time_limit_is_killed() -> None:
    with pytest.raises(ScriptFailed, match=r"took longer than 0\.5 seconds"):
        run("while True: pass", seconds=0.5)


DOUBLING = program(
    facet("Twice", "x", "y", {"type": "ScriptBlock", "code": "result['y'] = params['x'] * 2"}),
    workflow("W", "", "out", block(step("t", "Twice", x=21), yields=[to("W", out=of("t.y"))])),
)


def test_a_worker_runs_scripts_when_the_setting_is_on(tmp_path: Path) -> None:
    settings = Settings(
        database_url=f"sqlite:///{tmp_path}/flow.db",
        spool_directory=str(tmp_path / "spool"),
        scripts=True,
    )
    with empty_registry():
        embedded = Embedded(settings)
        try:
            assert embedded.engine.start(DOUBLING, "W", {}).outputs(timeout=30) == {"out": 42}
        finally:
            embedded.close()


def test_an_engine_without_the_setting_refuses_new_runs_with_scripts(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/flow.db")
    ensure_schema(database, upgrade=True)
    run = Engine(database, settings=Settings(scripts=True)).start(DOUBLING, "W", {})
    engine = Engine(database)
    (task,) = engine.claim([SCRIPT], SCRIPT_LIST, WorkerIdentity(), most=1)
    engine.report(task, Succeeded({"result": {"y": 42}}))
    assert engine.get(run.id).outputs == {"out": 42}
    with pytest.raises(InvalidProgram, match="the setting `scripts` is on"):
        engine.start(DOUBLING, "W", {})
    database.close()
