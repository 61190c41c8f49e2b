"""Programs loaded from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowengine import Retry, event_facet, load_program
from flowengine.afl import read_text
from flowengine.engine import Engine
from flowengine.errors import InvalidProgram, InvalidText, ProgramError
from flowengine.evaluator import RunState
from flowengine.program import Program, write_program
from flowengine.program.nodes import EventOptions, FacetDeclaration, Namespace
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema
from flowengine.worker.execution import execute_try
from tests.registries import empty_registry

TEXT = """namespace n {
  event facet One(x: Long) => (n: Long)
  event facet Two(x: Long) => (a: Long, b: Long)
  workflow W(x: Long) => (sum: Long) andThen {
    one = One(x = $.x)
    two = Two(x = one.n)
    yield W(sum = two.a + two.b)
  }
}"""


def options(program: Program, name: str) -> EventOptions:
    (space,) = program.declarations
    assert isinstance(space, Namespace)
    found = {d.name: d for d in space.declarations if isinstance(d, FacetDeclaration)}
    return found[name].options


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "n.afl"
    path.write_text(TEXT)
    return path


def test_a_facet_takes_the_options_of_the_function_with_its_name(file: Path) -> None:
    with empty_registry():
        event_facet(name="n.One", task_list="io", retry=Retry(attempts=3))(lambda x: x)
        program = load_program(file)
    assert options(program, "One") == EventOptions("io", Retry(attempts=3))
    assert options(program, "Two") == EventOptions()


def test_options_in_the_program_take_precedence(tmp_path: Path, file: Path) -> None:
    with empty_registry():
        document = write_program(load_program(file))
        document["declarations"][0]["declarations"][0]["options"] = {"task_list": "gpu"}
        (tmp_path / "n.json").write_text(json.dumps(document))
        event_facet(name="n.One", task_list="io")(lambda x: x)
        assert options(load_program(tmp_path / "n.json"), "One").task_list == "gpu"


def test_an_error_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "n.afl").write_text("facet")
    with pytest.raises(InvalidText, match=r"n\.afl:1:6: expected a name"):
        load_program(tmp_path / "n.afl")
    with pytest.raises(ProgramError, match="neither AFL text"):
        load_program("n.txt")


WITH_SCRIPT = """namespace n {
  facet Twice(x: Long) => (y: Long) andThen script python {
    result['y'] = params['x'] * 2
  }
  workflow W() => (out: Long) andThen {
    t = Twice(x = 21)
    yield W(out = t.y)
  }
}"""


@pytest.mark.parametrize("suffix", [".afl", ".ffl", ".json"])
def test_scripts_are_accepted_where_the_setting_is_on(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"n{suffix}"
    file.write_text(json.dumps(read_text(WITH_SCRIPT)) if suffix == ".json" else WITH_SCRIPT)
    monkeypatch.delenv("FLOWENGINE_SCRIPTS", raising=False)
    with pytest.raises(InvalidProgram, match="FLOWENGINE_SCRIPTS=on"):
        load_program(file)
    program = load_program(file, settings=Settings(scripts=True))
    monkeypatch.setenv("FLOWENGINE_SCRIPTS", "on")
    assert load_program(file) == program


def test_json_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n.json").write_text("[" * 100_000)
    with pytest.raises(InvalidProgram, match=r"n\.json: is nested too deeply"):
        load_program(tmp_path / "n.json")


@pytest.mark.parametrize(
    ("two", "state"), [({"a": 1, "b": 2}, RunState.COMPLETED), ([1, 2], RunState.FAILED)]
)
def test_a_python_function_returns_the_fields_that_its_facet_declares(
    file: Path, database_url: str, two: object, state: str
) -> None:
    with empty_registry():
        event_facet(name="n.One")(_plus_one)
        event_facet(name="n.Two")(lambda x: two)
        database = Database(database_url)
        ensure_schema(database, upgrade=True)
        run = Engine(database).start(load_program(file), "n.W", {"x": 1})
        worker = Engine(database)  # a process that has not loaded the program
        while task := worker.claim_task(["n.One", "n.Two"]):
            worker.report(task, execute_try(worker, task, lambda: True))
        info = worker.get(run.id)
        database.close()
    assert info.state == state
    if state == RunState.FAILED:
        assert "declares the returns a, b, so return a map" in (info.error_text or "")
    else:
        assert info.outputs == {"sum": 3}


def _plus_one(x: int) -> int:
    return x + 1
