"""The documents keep their word: what they show runs, and what they name exists.

A reader can copy what stands there, so the tests do the same, in an empty directory for
each document and in the order of its text:

- a ``python`` block that begins with ``# file: name.py`` is written to that file, an ``afl``
  block that begins with ``// file: name.afl`` too;
- in a ``console`` block each line that begins with ``$ `` is run by a shell and must
  succeed. At its end a line may say ``# fails``: then it must not; ``# your id``: the run it
  names is the newest one here; ``# kill it at "text"``: it is killed when it has said so.

A block that is marked ``console servers`` needs a broker or a database server and is not run
here; what it shows was pasted from a terminal. Blocks of another kind, ``sh`` and ``text``
among them, are not run either.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import flowengine
from flowengine import errors, messaging
from flowengine.dispatch import notifier
from flowengine.settings import Settings
from flowengine.store import tables
from flowengine.tasks import celery_tasks

ROOT = Path(__file__).parent.parent.parent
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUNNABLE = [ROOT / "README.md", *GUIDE]
BIN = Path(sys.executable).parent

_BLOCK = re.compile(r"^```(\w*(?: servers)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:#|//) file: (\S+)\n")
_DEATH = re.compile(r'# kill it at "(.+)"$')
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(document: Path) -> list[tuple[str, str]]:
    return [(found[1], found[2]) for found in _BLOCK.finditer(document.read_text())]


def environment() -> dict[str, str]:
    """The reader's shell: the command is on the path, and nothing is set."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLOWENGINE_", "PYTEST_"))}
    return {**kept, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}


def follow(document: Path, directory: Path) -> list[str]:
    """Do what the document says; return what went otherwise."""
    problems = []
    for kind, text in blocks(document):
        if file := _FILE.match(text):
            (directory / file[1]).write_text(text)
        elif kind == "console":
            commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
            problems += [p for command in commands if (p := tried(command, directory))]
    return problems


def tried(command: str, directory: Path) -> str:
    """Run one command; say what is wrong with how it ended, or nothing."""
    if death := _DEATH.search(command):
        return killed(command, directory, death[1])
    if command.endswith("# your id"):
        command = re.sub(r"\b[0-9a-f]{8}\b", newest_run(directory), command)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    if (done.returncode == 0) is command.endswith("# fails"):
        return f"$ {command}\nended with {done.returncode}\n{done.stdout}{done.stderr}"
    return ""


def killed(command: str, directory: Path, word: str) -> str:
    """Run one command and kill it, and all it started, as soon as it says the word."""
    said = ""
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        assert child.stdout
        for line in child.stdout:
            said += line
            if word in line:
                os.killpg(child.pid, signal.SIGKILL)
                return ""
    return f"$ {command}\nended with {child.returncode} and never said {word!r}\n{said}"


def newest_run(directory: Path) -> str:
    with closing(sqlite3.connect(directory / "flowengine.db")) as database:
        newest = "SELECT id FROM flowengine_run ORDER BY created DESC LIMIT 1"
        return str(database.execute(newest).fetchone()[0])[:8]


@pytest.fixture(scope="module")
def followed(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Path], Future[list[str]]]]:
    """All runnable documents, side by side: most of their time is waiting."""
    with ThreadPoolExecutor(len(RUNNABLE)) as pool:
        futures = {
            document: pool.submit(follow, document, tmp_path_factory.mktemp(document.stem))
            for document in RUNNABLE
        }
        yield futures.__getitem__


@pytest.mark.parametrize("document", RUNNABLE, ids=named)
def test_what_a_document_shows_runs_in_an_empty_directory(
    document: Path, followed: Callable[[Path], Future[list[str]]]
) -> None:
    problems = followed(document).result(timeout=300)
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize("document", RUNNABLE, ids=named)
def test_a_document_shows_something_that_runs(document: Path) -> None:
    kinds = [kind for kind, _ in blocks(document)]
    assert "console" in kinds


def test_the_first_program_of_the_readme_is_the_quickstart() -> None:
    first = next(text for kind, text in blocks(ROOT / "README.md") if kind == "python")
    assert first in (ROOT / "examples" / "quickstart.py").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    prose = _BLOCK.sub("", document.read_text())
    for link in _LINK.findall(prose):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (document.parent / place).resolve() if place else document
        assert target.exists(), f"{named(document)} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{named(document)} links to {link}"


def anchors(document: Path) -> set[str]:
    """The headings of a document as the usual renderers name them in links."""
    prose = _BLOCK.sub("", document.read_text())
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_setting_is_explained_with_its_variable() -> None:
    text = (ROOT / "docs" / "guide" / "running.md").read_text()
    for field in dataclasses.fields(Settings):
        assert f"`{field.name}`" in text
        assert f"`FLOWENGINE_{field.name.upper()}`" in text


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "python-api.md").read_text()
    assert [name for name in flowengine.__all__ if f"`{name}" not in text] == []


def test_every_name_and_setting_of_messaging_is_in_its_guide() -> None:
    text = (ROOT / "docs" / "messaging.md").read_text()
    assert [name for name in messaging.__all__ if f"`{name}" not in text] == []
    configs = (messaging.CoordinatorConfig, messaging.CircuitBreakerConfig)
    settings = [name for config in configs for name in config.model_fields]
    assert [name for name in settings if f"| `{name}` |" not in text] == []
    doors = [
        name
        for kind in (messaging.RedisMessageCoordinator, messaging.RedisAgentRegistry)
        for name in vars(kind)
        if not name.startswith("_")
    ]
    assert [name for name in doors if f"`{name}(" not in text] == []


def test_every_error_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    classes = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    ]
    assert [name for name in classes if f"`{name}`" not in text] == []


def test_every_action_of_the_log_is_explained() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    code = "".join(path.read_text() for path in (ROOT / "flowengine").rglob("*.py"))
    actions = set(re.findall(r'"action": "([^"]+)"', code))
    assert actions
    assert sorted(action for action in actions if f"| `{action}` |" not in text) == []
    listed = set(re.findall(r"^\| `([^`]+)` \| (?:info|warning|error) \|", text, re.MULTILINE))
    assert sorted(listed - actions) == []


def test_every_table_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "tables.md").read_text()
    assert [name for name in tables.metadata.tables if name not in text] == []


def test_every_doorway_is_in_the_guide_and_in_the_reference() -> None:
    names = (
        notifier.DRAIN,
        notifier.WORK,
        notifier.EVALUATE,
        celery_tasks.EXECUTE,
        celery_tasks.WATCHDOG,
    )
    for place in ("guide/celery.md", "reference/python-api.md"):
        text = (ROOT / "docs" / place).read_text()
        assert [name for name in names if f"`{name}`" not in text] == []


def test_the_floors_are_those_that_are_kept() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    kinds = blocks(ROOT / "docs" / "design.md")
    drawn = next(text for kind, text in kinds if kind == "text" and "assembly" in text)
    assert [re.split(r" {2,}", line)[0] for line in drawn.splitlines()] == layers


def test_the_version_of_the_changelog_is_the_version_of_the_package() -> None:
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == flowengine.__version__
