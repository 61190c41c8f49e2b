"""AFL text from the command line: a file, its facets in Python, an empty directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowengine.afl import read_text
from tests.acceptance.test_command_line import flowengine
from tests.integration.test_program_files import WITH_SCRIPT

TEXT = """
namespace words {
  event facet Fetch(url: String) => (text: String, bytes: Long)
  event facet Count(text: String) => (n: Long)
  workflow Total(urls: [String], extra: Long = 2) => (counts: [Long])
    andThen foreach url in $.urls {
      page = Fetch(url = $.url)
      words = Count(text = page.text)
      yield Total(counts = [words.n + $.extra + page.bytes])
    }
  workflow One(text: String) => (n: Long) andThen {
    words = Count(text = $.text)
    yield One(n = words.n)
  }
}
"""
HANDLERS = """
from flowengine import Retry, current_step, event_facet

@event_facet(name="words.Fetch", retry=Retry(attempts=2, first_wait=0.01))
def fetch(url: str) -> dict[str, str | int]:
    if current_step().try_number == 1:
        raise OSError("no answer")
    return {"text": f"the text of {url}", "bytes": 100}

@event_facet(name="words.Count")
def count(text: str) -> int:
    return len(text.split())
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "words.afl").write_text(TEXT)
    (tmp_path / "handlers.py").write_text(HANDLERS)
    return tmp_path


def test_a_workflow_in_afl_runs_with_the_python_code_of_its_facets(here: Path) -> None:
    output = flowengine(
        here,
        *("run", "words.afl", "--workflow", "words.Total", "--module", "handlers"),
        *("-i", 'urls=["a","b"]', "--json"),
    )
    run = json.loads(output)
    assert run["outputs"] == {"counts": [106, 106]}
    shown = json.loads(flowengine(here, "show", run["id"], "--json"))
    tries = {step["path"]: step["tries"] for step in shown["steps"]}
    assert tries["Total[0].page"] == 2, "the function's retry policy holds"


def test_scripts_run_where_the_setting_is_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWENGINE_SCRIPTS", "on")
    for suffix in (".afl", ".ffl"):
        (here / f"s{suffix}").write_text(WITH_SCRIPT)
        run = json.loads(flowengine(here, "run", f"s{suffix}", "--json"))
        assert run["outputs"] == {"out": 42}
    (here / "s.json").write_text(flowengine(here, "compile", "s.ffl"))
    assert json.loads(flowengine(here, "run", "s.json", "--json"))["outputs"] == {"out": 42}


def test_the_workflow_can_follow_a_colon_and_the_module_can_be_a_file(here: Path) -> None:
    words = ["run", "words.afl:One", "-m", "handlers.py", "-i", "text=12 men"]
    assert 'result  {"n": 2}' in flowengine(here, *words)


def test_compile_prints_program_json_that_can_be_run(here: Path) -> None:
    printed = flowengine(here, "compile", "words.afl")
    assert json.loads(printed) == read_text(TEXT)
    flowengine(here, "compile", "words.afl", "-o", "words.json")
    words = ["run", "words.json:words.One", "-m", "handlers", "-i", "text=a"]
    assert 'result  {"n": 1}' in flowengine(here, *words)


def test_a_program_of_several_files_is_run_and_compiled(here: Path) -> None:
    (here / "text.afl").write_text("namespace text { facet Of(n: Long) => (m: Long) }")
    (here / "main.afl").write_text(
        "namespace main { use text workflow W(n: Long) => (m: Long) andThen {\n"
        "  one = Of(n = $.n) andThen { yield Of(m = $.n + 1) }\n  yield W(m = one.m) } }"
    )
    words = ["text.afl", "main.afl:W", "-i", "n=1"]
    assert 'result  {"m": 2}' in flowengine(here, "run", *words)
    flowengine(here, "compile", "text.afl", "main.afl", "-o", "both.json")
    assert 'result  {"m": 3}' in flowengine(here, "run", "both.json", "-i", "n=2")
    found = flowengine(here, "run", "main.afl", expect=1)
    assert "main.afl:1:1, namespace 'main': uses 'text', which no file" in found
    found = flowengine(here, "run", "text.afl", "handlers.py", expect=1)
    assert "handlers.py is not a file of a program" in found


def test_a_run_of_an_afl_workflow_continues_in_another_process(here: Path) -> None:
    words = ["run", "words.afl:One", "-m", "handlers", "-i", "text=a b c", "--no-wait"]
    flowengine(here, *words)
    flowengine(here, "resume", "handlers")
    (run,) = json.loads(flowengine(here, "list", "--json"))
    assert run["outputs"] == {"n": 3}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "nowhere.afl"], "there is no file nowhere.afl"),
        (["run", "words.afl", "-m", "handlers"], "it has: words.One, words.Total"),
        (["run", "words.afl:Nothing", "-m", "handlers"], "it declares: words.One, words.Total"),
        (["run", "words.afl:One", "-i", "text=a"], "name its module with --module"),
        (["run", "words.afl:One", "-m", "handlers", "-i", "txt=a"], "did you mean 'text'?"),
        (["run", "broken.afl"], "broken.afl:2:11: expected a name, found `{`"),
        (["run", "wrong.afl"], "wrong.afl:1:23, W, step 's': unknown facet 'F'"),
        (["compile", "wrong.afl"], "wrong.afl:1:23, W, step 's': unknown facet 'F'"),
        (["run", "words.json"], "is not JSON"),
    ],
)
def test_an_error_has_its_place_and_creates_no_database(
    here: Path, words: list[str], says: str
) -> None:
    (here / "broken.afl").write_text("\nnamespace { }")
    (here / "wrong.afl").write_text("workflow W() andThen {s = F() }")
    (here / "words.json").write_text("namespace")
    output = flowengine(here, *words, expect=1)
    assert says in output
    assert "Traceback" not in output
    assert not (here / "flowengine.db").exists()
