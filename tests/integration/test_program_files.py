"""Programs loaded from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowengine import Retry, event_facet, load_program, workflow
from flowengine.afl import merged, read_text
from flowengine.engine import Engine
from flowengine.errors import InvalidProgram, InvalidText, ProgramError, ValueRefused
from flowengine.evaluator import RunState
from flowengine.evaluator.triggers import Succeeded
from flowengine.program import Program, parse_program, write_program
from flowengine.program.nodes import EventOptions, FacetDeclaration, Namespace
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema
from flowengine.worker.execution import execute_try
from tests.integration.engines import opened
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
            worker.report(task, execute_try(worker, task, lambda _: True))
        info = worker.get(run.id)
        database.close()
    assert info.state == state
    if state == RunState.FAILED:
        assert "declares the returns a, b, so return a map" in (info.error_text or "")
    else:
        assert info.outputs == {"sum": 3}


def _plus_one(x: int) -> int:
    return x + 1


# --- declared types and answers ---


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ({"a": 1, "b": 2}, ""),
        ({"a": 1.0, "b": None}, ""),
        ({"a": "one", "b": 2}, "'a': expected Long, found 'one'"),
        ({"a": [1], "b": 2.5}, "'a': expected Long, found a list; 'b': expected Long, found 2.5"),
    ],
)
@pytest.mark.parametrize("way", ["python", "report", "continue"])
def test_the_types_that_a_facet_declares_are_held_against_answers(
    way: str, file: Path, database_url: str, returned: dict[str, object], problem: str
) -> None:
    with empty_registry(), opened(database_url) as engine:
        event_facet(name="n.One")(_plus_one)
        event_facet(name="n.Two")(lambda x: returned)
        run = engine.start(load_program(file), "W", {"x": 1})
        report(engine, "n.One", {"n": 2})
        task = engine.claim_task(["n.Two"])
        assert task is not None
        if way == "python":
            engine.report(task, execute_try(engine, task, lambda _: True))
        elif way == "report":
            engine.report(task, Succeeded(returned))
        elif problem:
            with pytest.raises(ValueRefused) as refused:
                engine.continue_step(task.step_id, returned)
            assert problem in str(refused.value)
            return
        else:
            engine.continue_step(task.step_id, returned)
        (step,) = [step for step in engine.steps(run.id) if step.path == "W.two"]
        if not problem:
            assert step.returns == returned
            return
        assert step.error is not None
        assert (step.error["type"], problem in step.error["message"]) == ("DoesNotFit", True)


def test_the_schema_that_a_facet_declares_is_held_against_answers(
    tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "n.afl").write_text(
        """namespace n {
             schema Spot { x: Long, tags: [String] }
             event facet Find() => (spots: [Spot])
             workflow W() => (spots: Json) andThen {
               f = Find()
               yield W(spots = f.spots)
             }
           }"""
    )
    with empty_registry(), opened(database_url) as engine:
        run = engine.start(load_program(tmp_path / "n.afl"), "W", {})
        report(engine, "n.Find", {"spots": [{"x": 1, "tags": []}, {"x": 1, "tags": [2]}]})
        error = engine.get(run.id).error
        assert error is not None
        assert "'spots': item 1: tags: item 0: expected String, found 2" in error["message"]


def test_the_annotation_of_a_function_vouches_for_its_result(database_url: str) -> None:
    """A deploy may change it while a run goes on with its program."""
    with empty_registry(), opened(database_url) as engine:

        @event_facet(name="n.price")
        def price(n: int) -> int:
            return n

        @workflow(name="n.buy")
        def buy(n: int) -> int:
            return price(n)

        run = engine.start(buy.program(), buy.name, {"n": 1})
    with empty_registry(), opened(database_url) as engine:
        event_facet(name="n.price")(_half)
        task = engine.claim_task(["n.price"])
        assert task is not None
        engine.report(task, execute_try(engine, task, lambda _: True))
        assert engine.get(run.id).outputs == {"result": 0.5}


def _half(n: int) -> float:
    return n / 2


def report(engine: Engine, name: str, result: dict[str, object]) -> None:
    task = engine.claim_task([name])
    assert task is not None
    engine.report(task, Succeeded(result))


# --- a program of several files ---

SHARED = """namespace lib {
  schema Spot { x: Long }
  event facet Find(name: String) => (at: Spot)
}
"""
MAIN = """namespace app {
  use lib
  workflow W(name: String) => (x: Long) andThen {
    f = Find(name = $.name)
    yield W(x = f.at.x)
  }
}
"""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "lib.afl").write_text(SHARED)
    (tmp_path / "app.afl").write_text(MAIN)
    return [tmp_path / "lib.afl", tmp_path / "app.afl"]


def test_several_files_are_one_program(files: list[Path], tmp_path: Path) -> None:
    program = load_program(files)
    whole = tmp_path / "whole.afl"
    whole.write_text(SHARED + MAIN)
    assert program == load_program(whole)
    compiled = [read_text(path.read_bytes()) for path in files]
    (tmp_path / "lib.json").write_text(json.dumps(compiled[0]))
    assert load_program([tmp_path / "lib.json", files[1]]) == program
    assert parse_program(merged(compiled)) == program


def test_the_problems_of_several_files_have_their_files(files: list[Path], tmp_path: Path) -> None:
    files[1].write_text(MAIN.replace("use lib", "use libs").replace("Find(name", "Find(nmae"))
    (tmp_path / "more.afl").write_text("facet F(at: Spto)\nfacet F(n: Long)")
    files.append(tmp_path / "more.afl")
    with pytest.raises(InvalidProgram) as caught:
        load_program(files)
    found = str(caught.value)
    assert "more.afl:2:1, F: is declared twice" in found or "more.afl:1:1, F: is" in found
    (tmp_path / "more.afl").write_text("\nfacet F(at: Spto)")
    with pytest.raises(InvalidProgram) as caught:
        load_program(files)
    places = [problem.where.removeprefix(f"{tmp_path}/") for problem in caught.value.problems]
    assert places == [
        "app.afl:1:1, namespace 'app'",
        "more.afl:2:1, F, parameter 'at'",
        "app.afl:4:5, app.W, step 'f'",
        "app.afl:4:5, app.W, step 'f'",
    ]


def test_a_program_without_a_file_is_refused() -> None:
    with pytest.raises(ProgramError, match="needs a file"):
        load_program([])
