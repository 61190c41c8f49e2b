"""Text of runs is safe to show: no markup, no escape sequence, no line of its own."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flowengine.cli
from tests.acceptance import commands

FLOWENGINE = str(Path(sys.executable).parent / "flowengine")
HOSTILE = "[/b] [red]\x1b]0;title\x07 \x1b[2J\x9b31m \u202eright\n1 ms ✓ forged  complete \r over"
MODULE = f"""
from flowengine import event_facet, foreach, workflow

@event_facet
def boom(text: str) -> str:
    raise ValueError({HOSTILE!r} + text)

@event_facet
def echo(text: str) -> str:
    return text

@workflow
def fails(text: str) -> str:
    return boom(text)

@workflow
def returns(text: str) -> str:
    return echo(text)
"""
#: Those of rich's own styles and of its live view: colours, cursor up, erase line, hide cursor.
OURS = re.compile(r"\x1b\[[0-9;]*[mAK]|\x1b\[\?25[lh]|\x1b\[1A|\r")


@pytest.fixture(params=["plain", "terminal"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    return {"COLUMNS": "300", **(terminal if request.param == "terminal" else {})}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "hostile.py").write_text(MODULE)
    return tmp_path


def assert_safe(output: str) -> None:
    text = OURS.sub("", output)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", text)
    assert not re.search("^1 ms ✓ forged", text, re.MULTILINE), "a line of the error's own"


def test_a_hostile_error_ends_no_command_and_reaches_no_terminal(
    here: Path, environment: dict[str, str]
) -> None:
    run = commands.flowengine(["run", "hostile:fails", "-i", "text=x"], here, environment)
    listed = commands.flowengine(["list"], here, environment)
    (info,) = json.loads(commands.flowengine(["list", "--json"], here).stdout)
    shown = commands.flowengine(["show", info["id"]], here, environment)
    assert (run.returncode, listed.returncode, shown.returncode) == (1, 0, 0)
    for done in (run, listed, shown):
        # Without spaces: a narrow column breaks the text.
        assert "[/b][red]\\x1b]0;title\\x07" in re.sub(r"\s", "", OURS.sub("", done.stdout))
        assert_safe(done.stdout + done.stderr)
    assert info["error"]["message"] == HOSTILE + "x", "JSON has it unchanged"


def test_a_hostile_result_reaches_no_terminal(here: Path, environment: dict[str, str]) -> None:
    words = ["run", "hostile:returns", "-i", f"text={HOSTILE}"]
    run = commands.flowengine(words, here, environment)
    assert run.returncode == 0, run.stderr
    assert_safe(run.stdout + run.stderr)
    (info,) = json.loads(commands.flowengine(["list", "--json"], here).stdout)
    shown = commands.flowengine(["show", info["id"]], here, environment)
    assert_safe(shown.stdout)
    assert info["outputs"] == {"result": HOSTILE}


def test_a_log_line_of_a_failed_try_is_one_line(here: Path) -> None:
    (here / "logged.py").write_text(
        "import logging\nlogging.basicConfig(level='INFO', format='LOG %(message)s')\n"
        "from hostile import fails\n"
    )
    done = commands.flowengine(["run", "logged:fails", "-i", "text=x"], here)
    (failed,) = [line for line in done.stderr.splitlines() if "failed: ValueError" in line]
    assert failed.startswith("LOG fails.boom failed: ValueError: [/b]")
    assert_safe(done.stderr)


def test_a_long_error_is_cut_in_the_list(here: Path) -> None:
    words = ["run", "hostile:fails", "-i", f"text={'x' * 100_000}"]
    assert commands.flowengine(words, here).returncode == 1
    listed = commands.flowengine(["list"], here, {"COLUMNS": "200"})
    assert "characters)" in listed.stdout
    assert len(listed.stdout) < 3_000


def test_a_hostile_name_in_a_program_reaches_no_terminal(here: Path) -> None:
    program = {"type": "Program", "declarations": [{"type": HOSTILE, "name": HOSTILE}]}
    (here / "p.json").write_text(json.dumps(program))
    (here / "p.afl").write_text(f"namespace a {{ {HOSTILE} }}")
    for words in (["run", "p.json"], ["compile", "p.afl"], ["run", f"p.json:{HOSTILE}"]):
        done = commands.flowengine(words, here)
        assert done.returncode != 0
        assert_safe(done.stdout + done.stderr)


def test_a_terminal_without_unicode_gets_escape_sequences(here: Path) -> None:
    words = [FLOWENGINE, "run", "hostile:returns", "-i", "text=x"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, cwd=here, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "\\u2713 returns.echo" in done.stdout


def test_only_one_module_makes_text_for_the_terminal() -> None:
    folder = Path(flowengine.cli.__file__).parent
    for path in folder.glob("*.py"):
        if path.name == "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                made = ast.unparse(node.func)
                assert made not in ("Console", "Text", "Text.assemble", "Text.from_markup"), path
