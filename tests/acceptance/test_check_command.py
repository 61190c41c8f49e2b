"""`flowengine check` reports all problems, each with its line, without running anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.acceptance import commands

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
BROKEN = """\
from __future__ import annotations
import time
from flowengine import event_facet, facet, foreach, workflow

@event_facet
def fetch(url: str) -> dict: ...

@event_facet
def count(words: Nonsense) -> int: ...

@workflow
def lints(url: str) -> bool:
    try:
        page = fetch(url)
    except ValueError:
        page = time.time()
    return page is None

@facet
def decides(url: str) -> int:
    if fetch(url):
        return 1
    return 2

@workflow
def uses(url: str) -> int:
    return decides(url)

@workflow
def divides(url: str) -> int:
    return 1 // 0

@workflow
def endless(url: str) -> list[int]:
    return foreach([url], lambda each: fetch(each).size) + [endless(url)]
"""
TYPED = """\
from pydantic import BaseModel
from flowengine import event_facet, foreach, workflow

class Page(BaseModel):
    size: int

@event_facet
def fetch(url: str) -> Page: ...

@event_facet
def add(n: int) -> int: ...

@workflow
def weighs(urls: list[str]) -> list[int]:
    return foreach(
        urls,
        lambda url: add(
            fetch(url).weight,
        ),
    )
"""


def check(here: Path, *names: str, expect: int) -> str:
    done = commands.flowengine(["check", *names], here, {"COLUMNS": "80"})
    assert done.returncode == expect, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def problems(here: Path, *names: str) -> list[tuple[str, int, str]]:
    shown: dict[str, Any] = json.loads(check(here, *names, "--json", expect=1))
    return [(p["file"], p["line"], p["what"]) for p in shown["problems"]]


def test_the_examples_have_no_problems(tmp_path: Path) -> None:
    names = [str(path) for path in sorted(EXAMPLES.glob("*.py"))]
    output = check(tmp_path, *names, expect=0)
    assert output.startswith("✓ ")
    assert output.endswith(": no problems\n")


UNORDERED = """
from flowengine import event_facet, workflow

@event_facet
def create_table() -> None: ...

@event_facet
def insert_rows(n: int) -> int: ...

@workflow
def load(n: int) -> int:
    create_table()
    return insert_rows(n)

@workflow
def ordered(n: int) -> int:
    return insert_rows.after(create_table())(n)

@workflow
def unordered(n: int) -> int:
    create_table.after()()
    return insert_rows(n)
"""


def test_steps_without_order_are_a_warning_at_their_line(tmp_path: Path) -> None:
    (tmp_path / "tables.py").write_text(UNORDERED)
    shown = json.loads(check(tmp_path, "tables.py", "--json", expect=0))
    ((file, line, what),) = [(w["file"], w["line"], w["what"]) for w in shown["warnings"]]
    assert (file, line, shown["problems"]) == ("tables.py", 12, [])
    assert "'create_table' runs at the same time as 'insert_rows'" in what
    output = check(tmp_path, "tables.py", expect=0)
    assert "12 ! step 'create_table'" in output
    assert output.endswith(": no problems, 1 warning\n")


def test_every_problem_of_every_function_is_reported_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    found = problems(tmp_path, "broken.py")
    assert [(file, line) for file, line, _ in found] == [
        ("broken.py", line) for line in (8, 13, 16, 17, 21, 31, 33)
    ]
    wanted = ["'Nonsense'", "attempt(", "flowengine.now()", "`is`", "when(", "ZeroDivision"]
    for (_, _, what), text in zip(found, [*wanted, "calls itself without end"], strict=True):
        assert text in what


def test_a_problem_of_the_linker_has_the_line_of_its_step(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    ((file, line, what),) = problems(tmp_path, "typed")
    assert (file, line) == ("typed.py", 17)
    assert "fetch.result has no 'weight'" in what


def test_a_failed_import_does_not_hide_other_problems(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    (tmp_path / "missing.py").write_text("x = 1\nimport nonsuch\n")
    (tmp_path / "syntax.py").write_text("\n\ndef x(:\n")
    names = ["missing.py", "syntax.py", "nofile.py", "nomodule", "typed.py"]
    found = problems(tmp_path, *names)
    assert [(file, line) for file, line, _ in found] == [
        *(("missing.py", 2), ("syntax.py", 3), ("nofile.py", 0), ("nomodule", 0)),
        ("typed.py", 17),
    ]


def test_a_package_is_checked_with_all_its_modules(tmp_path: Path) -> None:
    inner = tmp_path / "shop" / "inner"
    inner.mkdir(parents=True)
    for package in (tmp_path / "shop", inner):
        (package / "__init__.py").write_text("")
    (inner / "typed.py").write_text(TYPED)
    (tmp_path / "shop" / "__main__.py").write_text("raise SystemExit('was run')")
    for target in ("shop", "shop/", "shop/inner/"):  # as a shell completes it
        ((file, line, _),) = problems(tmp_path, target)
        assert (file, line) == ("shop/inner/typed.py", 17)


def test_problems_are_shown_by_file(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    output = check(tmp_path, "broken.py", expect=1).splitlines()
    assert output[0] == "broken.py"
    assert output[2].startswith("    13 ✗ `try` ends before")
    assert output[-1] == "7 problems (4 workflows, 3 facets)"
