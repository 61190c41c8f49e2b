"""Scripts run in their own process, with time and memory limits."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery

from flowengine import event_facet
from flowengine.assembly.embedded import Embedded
from flowengine.authoring import event_facet_names
from flowengine.engine import Engine
from flowengine.errors import AuthoringError, InvalidProgram, ScriptFailed
from flowengine.evaluator.triggers import Succeeded
from flowengine.program import link_program, parse_program
from flowengine.program.standard import CHILD, SCRIPT, SCRIPT_LIST
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema
from flowengine.store.claims import WorkerIdentity
from flowengine.tasks import celery_tasks
from flowengine.worker.script_runner import offer_scripts, run_script
from tests.builders import block, event, facet, namespace, of, program, step, to, workflow
from tests.registries import empty_registry

#: A script has no imports, but whoever wants to finds modules in the classes of others.
OS = "found = [c for c in ().__class__.__base__.__subclasses__() if 'BuiltinImporter' in str(c)]\n"
OS += "os = found[0].load_module('posix').__dict__\n"


def run(code: str, params: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    return run_script(code, params or {}, Settings(**settings))


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
        run("while True: pass", script_seconds=0.5)


@pytest.mark.parametrize(
    ("code", "settings", "problem"),
    [
        ("while True: pass", {"script_cpu_seconds": 1}, "SIGXCPU .*script_cpu_seconds"),
        ("result['x'] = 'x' * 9_000", {"max_value_bytes": 1000}, "more than 1,000 bytes"),
        (OS + "[os['dup'](1) for _ in range(20)]", {"script_open_files": 8}, "Too many open files"),
        (OS + "os['dup2'](0, 1)\nos['_exit'](3)", {}, "process ended with 3"),
        (OS + "os['write'](1, b'[1]')\nos['_exit'](0)", {}, "process ended with 0"),
        (OS + "os['abort']()", {}, "ended by SIGABRT"),
        (OS + "while True: os['write'](1, b'x' * 9999)", {}, "more than 1,048,576 bytes"),
    ],
)
def test_a_script_that_exceeds_a_limit_is_ended_with_the_name_of_the_limit(
    code: str, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ScriptFailed, match=problem):
        run(code, **settings)


def test_a_script_has_an_empty_environment_and_a_session_of_its_own() -> None:
    code = OS + "result['env'] = {str(k, 'ascii'): 1 for k in os['environ']}\n"
    code += "result['is_leader'] = os['getsid'](0) == os['getpid']() == os['getpgrp']()\n"
    code += "result['cwd'] = os['getcwd']()"
    found = run(code)
    assert found.pop("env").keys() <= {"LC_CTYPE"}  # set by Python itself
    assert found == {"is_leader": True, "cwd": "/"}


@pytest.mark.parametrize("ending", ["while True: pass", ""])
def test_processes_that_a_script_starts_end_with_it(ending: str) -> None:
    # Only root can start one: the limit of processes is 0.
    fork = "for _ in range(3):\n    if not os['fork']():\n        while True: pass\n"
    before = {process.pid for process in psutil.process_iter()}
    with suppress(ScriptFailed):
        run(OS + fork + ending, script_seconds=1)
    new = [p for p in psutil.process_iter(["cmdline"]) if p.pid not in before]
    started = [p for p in new if "RLIMIT_" in " ".join(p.info["cmdline"] or ())]
    _, alive = psutil.wait_procs(started, timeout=10)  # killed, and not yet collected by init
    assert not alive


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


def test_no_built_in_facet_can_be_called_by_a_message() -> None:
    with empty_registry():
        offer_scripts(Settings(scripts=True))
        event_facet(name="shop.pay")(lambda n: n)
        app = Celery("shop", broker="memory://", set_as_current=False)
        celery_tasks.register_facets(app)
        assert {SCRIPT, CHILD} <= set(event_facet_names()), "workers run them for steps"
    assert "shop.pay" in app.tasks
    assert not [name for name in app.tasks if name.startswith("flowengine.")]


@pytest.mark.parametrize("name", ["script", "pay", "child.deep"])
def test_a_program_cannot_declare_facets_in_the_namespace_of_the_engine(name: str) -> None:
    document = program(
        namespace("flowengine", event(name, "code params", "result")),
        workflow("W", "", "", block(step("s", f"flowengine.{name}", code="1", params=1))),
    )
    with pytest.raises(InvalidProgram, match="the engine's own"):
        link_program(parse_program(document), allow_scripts=True)


def test_a_function_cannot_have_a_name_in_the_namespace_of_the_engine() -> None:
    for name in (SCRIPT, "flowengine.pay"):
        with pytest.raises(AuthoringError, match="the engine's own"):
            event_facet(name=name)(lambda n: n)


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
