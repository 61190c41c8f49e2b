"""Every command ends bad input with one clear sentence and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance import commands

MODULE = """
from flowengine import event_facet, workflow

@event_facet
def one(n: int) -> int:
    return n

@workflow
def flow(n: int, text: str = "", any: object = None) -> int:
    return one(n)
"""


DURABLE = "from flowengine import workflow\n@workflow\nasync def asks() -> int:\n    return 1\n"
THIRD_VERSION = """
namespace durable {
  event facet asks@3() => (result: Int)
  workflow Third() => (result: Int) andThen {
    asked = asks@3()
    yield Third(result = asked.result)
  }
}
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "ours.py").write_text(MODULE)
    (tmp_path / "durable.py").write_text(DURABLE)
    (tmp_path / "third.afl").write_text(THIRD_VERSION)
    (tmp_path / "syntax.py").write_text("x = 1\nimport (\n")
    (tmp_path / "raises.py").write_text("def f():\n    raise KeyError('at import')\nf()\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "needs.py").write_text("import nowhere_at_all\n")
    (tmp_path / "traced.py").write_text(
        "from flowengine import workflow\n@workflow\ndef flow() -> int:\n    return 1 // 0\n"
    )
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "wrong.json").write_text('{"type": 5, "declarations": [1, null]}')
    (tmp_path / "cut.json").write_text('{"type": "Program", ')
    (tmp_path / "digits.json").write_text("9" * 5_000)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "bytes.afl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "no.db").write_text("not a database" * 1000)
    return tmp_path


DOWN = "postgresql+psycopg://joe:geheim@127.0.0.1:9/db?sslpassword=geheim"
NINES = "9" * 5_000

BAD: dict[str, tuple[list[str], dict[str, str], int, str]] = {
    # words, environment, exit code, and a part of the sentence
    "down": (["list"], {"url": DOWN}, 1, "127.0.0.1:9/db?sslpassword=*** cannot be used: "),
    "down show": (["show", "ab"], {"url": DOWN}, 1, "cannot be used: "),
    "down upgrade": (["db", "upgrade"], {"url": DOWN}, 1, "cannot be used: "),
    "down run": (["run", "ours", "-i", "n=1"], {"url": DOWN}, 1, "cannot be used: "),
    "down resume": (["resume", "ours"], {"url": DOWN}, 1, "cannot be used: "),
    "malformed": (["list"], {"url": "nonsense"}, 1, "'nonsense' is not the URL of a database"),
    "port": (["list"], {"url": "postgresql://joe:geheim@h:x/d"}, 1, "is not the URL of a database"),
    "other": (["list"], {"url": "mysql://joe:geheim@h/d"}, 1, "sqlite or postgresql, not in"),
    "driver": (["list"], {"url": "postgresql+nope://h/d"}, 1, "psycopg 3, not with 'nope'"),
    "option": (["list"], {"url": "postgresql://127.0.0.1:9/d?nope=1"}, 1, "nope"),
    "directory": (["list"], {"url": "sqlite:////tmp"}, 1, "cannot be opened"),
    "no database": (["list"], {"url": "sqlite:///no.db"}, 1, "is not a database"),
    "no directory": (["db", "upgrade"], {"url": "sqlite:////nowhere/x.db"}, 1, "cannot be opened"),
    "limit 0": (["list", "--limit", "0"], {}, 2, "1<=x<=10000"),
    "limit -1": (["list", "--limit", "-1"], {}, 2, "1<=x<=10000"),
    "limit of 20 digits": (["list", "--limit", "9" * 20], {}, 2, "1<=x<=10000"),
    "limit of 5,000 digits": (["list", "--limit", NINES], {}, 2, "is not a valid integer"),
    "limit of text": (["list", "--limit", "many"], {}, 2, "'many' is not a valid integer"),
    "state": (["list", "--state", "X"], {}, 2, "'X' is not one of"),
    "input of 5,000 digits": (["run", "ours", "-i", f"n={NINES}"], {}, 2, "the value of 'n'"),
    "deep input": (["run", "ours", "-i", "n=" + "[" * 10_000], {}, 2, "nested too deeply"),
    "deep value": (
        ["run", "ours", "-i", "n=1", "-i", "any=" + "[" * 900 + "]" * 900],
        {},
        1,
        "is not JSON: any is",
    ),
    "nan": (["run", "ours", "-i", "n=1", "-i", "any=NaN"], {}, 1, "number JSON does not have"),
    "input of bytes": (["run", "ours", "-i", "n=@bytes.txt"], {}, 2, "cannot be read as text"),
    "input file": (["run", "ours", "-i", "n=@" + "x" * 5_000], {}, 2, "cannot be read as text"),
    "input folder": (["run", "ours", "-i", "n=@."], {}, 2, "there is no file ."),
    "no name": (["run", "ours", "-i", "=5"], {}, 1, "'' is unknown"),
    "empty target": (["run", ""], {}, 1, "'' is not a module"),
    "parent": (["run", ".."], {}, 1, "'..' is not a module"),
    "here": (["run", "."], {}, 1, "'.' is not a module"),
    "relative": (["run", ".ours"], {}, 1, "'.ours' is not a module"),
    "file": (["run", ".py"], {}, 1, "there is no file .py"),
    "colon": (["run", ":"], {}, 1, "'' is not a module"),
    "slash": (["run", "./ours"], {}, 1, "'./ours' is not a module"),
    "long": (["run", "x" * 5_000], {}, 1, "there is no module"),
    "long file": (["run", "x" * 5_000 + ".py"], {}, 1, "x"),
    "long json": (["run", "x" * 5_000 + ".json"], {}, 1, "x"),
    "syntax": (["run", "syntax"], {}, 1, "syntax.py:2: "),
    "syntax file": (["run", "syntax.py:flow"], {}, 1, "syntax.py:2: "),
    "syntax resume": (["resume", "syntax"], {}, 1, "syntax.py:2: "),
    "syntax module": (["run", "ours", "-m", "syntax"], {}, 1, "syntax.py:2: "),
    "syntax check": (["check", "syntax"], {}, 1, "✗ "),
    "raises": (["run", "raises"], {}, 1, "raises.py:2: KeyError: 'at import'"),
    "exits": (["run", "exits"], {}, 1, "exits cannot be imported: "),
    "exits check": (["check", "exits"], {}, 1, "SystemExit"),
    "needs": (["run", "needs"], {}, 1, "No module named 'nowhere_at_all'"),
    "version": (
        ["run", "third.afl", "-m", "durable"],
        {},
        1,
        "no Python code for version 3 of the durable function durable.asks in this process",
    ),
    "traced": (["run", "traced"], {}, 1, "traced.py:4: ZeroDivisionError"),
    "deep json": (["run", "deep.json"], {}, 1, "nested too deeply"),
    "wrong json": (["run", "wrong.json"], {}, 1, "the program cannot be loaded"),
    "cut json": (["run", "cut.json"], {}, 1, "is not JSON"),
    "digits": (["run", "digits.json"], {}, 1, "is not JSON"),
    "bytes json": (["run", "bytes.json"], {}, 1, "is not JSON"),
    "folder": (["run", "folder.json"], {}, 1, "there is no file folder.json"),
    "compile bytes": (["compile", "bytes.afl"], {}, 1, "bytes.afl"),
    "compile deep": (["compile", "deep.json"], {}, 1, "deep.json"),
    "compile nothing": (["compile", "nowhere.afl"], {}, 2, "does not exist"),
    "not text": (["list", "--workflow", "\udcff"], {}, 2, "not valid UTF-8"),
    "not text in a key": (["run", "ours", "--key", "\udcff"], {}, 2, "not valid UTF-8"),
    "setting": (["list"], {"FLOWENGINE_CONCURRENCY": "x"}, 1, "is not a whole number"),
    "digits of a setting": (["list"], {"FLOWENGINE_BATCH": NINES}, 1, "is not a whole number"),
    "command": (["\x1b[31m"], {}, 2, "No such command '\\x1b[31m'"),
    "no such option": (["--\x1b[31m"], {}, 2, "--\\x1b[31m"),
    "run id": (["show", "9" * 5_000], {"url": "sqlite:///made.db"}, 1, "there is no run"),
    "run id of signs": (["show", "%_'\"\\"], {"url": "sqlite:///made.db"}, 1, "there is no run"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_and_an_exit_code(here: Path, name: str) -> None:
    words, given, code, says = BAD[name]
    environment = {"COLUMNS": "200", **given}
    if (url := environment.pop("url", None)) is not None:
        environment["FLOWENGINE_DATABASE_URL"] = url
    if url == "sqlite:///made.db":
        assert commands.flowengine(["db", "upgrade"], here, environment).returncode == 0
    done = commands.flowengine(words, here, environment)
    output = done.stdout + done.stderr
    assert "Traceback" not in output, output
    assert (done.returncode, "geheim" in output) == (code, False), output
    assert says in output, output
    assert "\x1b" not in output
    assert "unexpected" not in output, "an error that nobody thought of"
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == (words[0] != "check")
    assert len(output) < 5_000, "a sentence"


def test_a_traceback_is_shown_if_asked_for(here: Path) -> None:
    done = commands.flowengine(["--traceback", "run", "raises"], here)
    assert done.returncode == 1
    assert "KeyError: 'at import'" in done.stderr
    assert "Traceback" in done.stderr


@pytest.mark.chaos
def test_show_of_a_run_of_many_nested_rounds_is_a_list(here: Path) -> None:
    (here / "rounds.py").write_text(
        "from flowengine import event_facet, facet, when, workflow\n"
        "@event_facet\ndef less(n: int) -> int:\n    return n - 1\n"
        "@facet\ndef rounds(n: int) -> int:\n"
        "    return when(n > 0, lambda: rounds(less(n)), otherwise=lambda: 0)\n"
        "@workflow\ndef flow(n: int) -> int:\n    return rounds(n)\n"
    )
    run = commands.flowengine(["run", "rounds", "-i", "n=400", "--json"], here)
    assert run.returncode == 0, run.stderr
    run_id = json.loads(run.stdout)["id"]
    for columns in ("200", "20"):
        shown = commands.flowengine(["show", run_id], here, {"COLUMNS": columns})
        assert shown.returncode == 0, shown.stderr[-2000:]
    shown = commands.flowengine(["show", run_id], here, {"COLUMNS": "200"})
    assert "… 389 more rounds: 389 complete" in shown.stdout
    assert "round 401" in shown.stdout
    whole = json.loads(commands.flowengine(["show", run_id, "--json"], here).stdout)
    assert sum(step["facet"] == "rounds.less" for step in whole["steps"]) == 400


def test_a_database_of_deep_values_is_listed_and_shown(here: Path) -> None:
    value = "[" * 190 + "]" * 190
    words = ["run", "ours", "-i", "n=1", "-i", f"any={value}", "--json"]
    run = commands.flowengine(words, here)
    assert run.returncode == 0, run.stderr
    run_id = json.loads(run.stdout)["id"]
    for form in ([], ["--json"]):
        assert commands.flowengine(["show", run_id, *form], here).returncode == 0
        assert commands.flowengine(["list", *form], here).returncode == 0
