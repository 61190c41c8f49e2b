"""The documents are true: their commands run, print what is shown, and every name exists."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import flowengine
from flowengine import errors, messaging
from flowengine.dispatch import notifier
from flowengine.documents import expressions, problems, yaml_reader
from flowengine.engine import backfill, merged_lines
from flowengine.library import processes
from flowengine.scheduling import decisions, schedule
from flowengine.settings import Settings
from flowengine.step_logs import cap, lines
from flowengine.store import tables
from flowengine.tasks import celery_tasks
from flowengine.worker import document_folder
from tests.acceptance.reader import Reader, shell_environment
from tests.acceptance.transcripts import Step, blocks, difference, without_blocks
from tests.servers import RedisServer
from tests.warm import warm_commands

ROOT = Path(__file__).parent.parent.parent
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SDK = sorted((ROOT / "docs" / "sdk").glob("*.md"))
MODELS = ROOT / "docs" / "reference" / "models.md"
RUNNABLE = [ROOT / "README.md", ROOT / "docs" / "agent-sdk.md", *SDK, MODELS, *GUIDE]

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def followed(
    tmp_path_factory: pytest.TempPathFactory, shared_redis: RedisServer
) -> Iterator[Callable[[Path], Future[list[str]]]]:
    """All runnable documents, several at a time: much of their time is waiting.

    The README is followed with the installed commands, the guide with those of a warm server.
    """
    shared_redis.start()
    shared_redis.flush()
    directory = tmp_path_factory.mktemp

    def follow(document: Path) -> list[str]:
        commands = None if document == ROOT / "README.md" else warm
        return Reader(directory(document.stem), shared_redis.url, commands).follow(document)

    warm = warm_commands(directory("warm"))
    with ThreadPoolExecutor(5) as pool:
        futures = {document: pool.submit(follow, document) for document in RUNNABLE}
        yield futures.__getitem__


@pytest.mark.parametrize("document", RUNNABLE, ids=named)
def test_every_command_of_a_document_runs_and_prints_what_is_shown(
    document: Path, followed: Callable[[Path], Future[list[str]]]
) -> None:
    problems = followed(document).result(timeout=600)
    assert not problems, "\n\n".join(problems)


def test_make_demo_draws_the_tree_that_the_readme_shows(tmp_path: Path) -> None:
    shown = next(text for kind, text in blocks(ROOT / "README.md") if kind == "text")
    recipe = subprocess.run(
        ["make", "--silent", "--dry-run", "--always-make", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    command = re.search(r"flowengine run examples(.*)", recipe.replace("\\\n", " "), re.DOTALL)
    assert command
    # On a terminal the tree is drawn again and again; its last frame stands at the end.
    shell = f"stty cols 200 rows 60; flowengine run {ROOT}/examples{command[1]}"
    done = subprocess.run(
        ["script", "-qec", shell, "/dev/null"],
        cwd=tmp_path,
        env={**shell_environment(), "TERM": "xterm"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    lines = done.stdout.replace("\r\n", "\n").splitlines()[-len(shown.splitlines()) :]
    assert not difference(Step("make demo", shown), "\n".join(lines))


@pytest.mark.parametrize("document", RUNNABLE, ids=named)
def test_every_guide_has_a_command_that_runs(document: Path) -> None:
    kinds = [kind for kind, _ in blocks(document)]
    assert "console" in kinds


def test_the_first_program_of_the_readme_is_the_quickstart() -> None:
    first = next(text for kind, text in blocks(ROOT / "README.md") if kind == "python")
    assert first in (ROOT / "examples" / "quickstart.py").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_relative_link_has_a_target(document: Path) -> None:
    prose = without_blocks(document)
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
    prose = without_blocks(document)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_setting_is_explained_with_its_variable() -> None:
    text = (ROOT / "docs" / "guide" / "running.md").read_text()
    for field in dataclasses.fields(Settings):
        assert f"`{field.name}`" in text
        assert f"`FLOWENGINE_{field.name.upper()}`" in text


def test_every_limit_is_on_its_page_with_its_default() -> None:
    text = (ROOT / "docs" / "reference" / "limits.md").read_text()
    limits = [f for f in dataclasses.fields(Settings) if f.name.startswith(("max_", "script_"))]
    assert len(limits) > 20
    rows = {f.name: f"| `{f.name}` | {f.default:,} |".replace(".0 |", " |") for f in limits}
    assert [row for row in rows.values() if row not in text] == []
    named = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert named == {f.name for f in limits}, "and no other"


def test_constants_that_limit_documents_schedules_and_logs_are_on_the_page_of_limits() -> None:
    text = (ROOT / "docs" / "reference" / "limits.md").read_text()
    table = text.partition("## Documents, schedules and logs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| ([\d,]+) \|", table, re.MULTILINE)
    stated = {words: int(number.replace(",", "")) for words, number in rows}
    for words, value in {
        "bytes of a [document]": yaml_reader.MAX_BYTES,
        "lists and maps": yaml_reader.MAX_DEPTH,
        "aliases": yaml_reader.MAX_ALIASED,
        "expressions in one text": expressions.MAX_EXPRESSIONS,
        "problems": problems.MAX_PROBLEMS,
        "files and folders": document_folder.MAX_ENTRIES,
        "standard output": processes.STDOUT_BYTES,
        "standard error": processes.STDERR_BYTES,
        "name of a schedule": schedule.MAX_NAME,
        "`catch_up: all`": decisions.MAX_RUNS,
        "backfill": backfill.MAX_TICKS,
        "a line in the log": lines.LINE_BYTES,
        "last lines": cap.TAIL_BYTES,
        "a whole log": merged_lines.HELD_CHARACTERS,
    }.items():
        assert [number for row, number in stated.items() if words in row] == [value], words


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "python-api.md").read_text()
    assert [name for name in flowengine.__all__ if f"`{name}" not in text] == []


def test_every_name_and_setting_of_messaging_is_in_its_guide() -> None:
    text = (ROOT / "docs" / "messaging.md").read_text()
    assert [name for name in messaging.__all__ if f"`{name}" not in text] == []
    configs = (messaging.CoordinatorConfig, messaging.CircuitBreakerConfig)
    settings = [name for config in configs for name in config.model_fields]
    assert [name for name in settings if f"| `{name}` |" not in text] == []
    methods = [
        name
        for kind in (messaging.RedisMessageCoordinator, messaging.RedisAgentRegistry)
        for name in vars(kind)
        if not name.startswith("_")
    ]
    assert [name for name in methods if f"`{name}(" not in text] == []


def test_every_error_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    classes = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException) and name[0] != "_"
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


def test_every_warning_of_the_log_has_an_action() -> None:
    without = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, method, call in log_calls()
        # The level of `log.log` is often computed, so any of its calls may be a warning.
        if method in {"warning", "error", "exception", "critical", "log"}
        and not any(keyword.arg == "extra" for keyword in call.keywords)
    ]
    # The event loop of durable functions logs as that of asyncio does.
    assert [place for place in without if "authoring/functions/loop.py" not in place] == []


def test_every_log_line_of_the_operations_page_is_a_line_of_the_code() -> None:
    document = ROOT / "docs" / "operations.md"
    logs = "\n".join(text for kind, text in blocks(document) if kind == "text")
    shown = re.findall(r"^\[.+?: [A-Z]+/.+?\] (.+)$", logs, re.MULTILINE)
    _, _, section = without_blocks(document).partition("## Failure modes\n")
    cells = re.findall(r"^\|[^|]*\|([^|]*)\|", section.partition("\n## ")[0], re.MULTILINE)
    quoted = {text for cell in cells for text in re.findall(r"`([^`]+)`", cell) if " " in text}
    assert shown
    assert quoted > _NOT_LOGGED
    lines = [*shown, *sorted(quoted - _NOT_LOGGED)]
    formats = set(log_formats())
    assert [line for line in lines if not any(is_line(line, each) for each in formats)] == []


#: Quoted among the log lines: a command, its output, and a line of Celery's own log.
_NOT_LOGGED = {
    "flowengine show",
    "try …, 1 lost",
    "waits for circuit '…' until …",
    "Connection to broker lost",
}
_LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def log_calls() -> Iterator[tuple[Path, str, ast.Call]]:
    """All log calls of the package: the file, the method and the call."""
    for path in (ROOT / "flowengine").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log" | "_log"), attr=method)
                ) if method in _LOG_METHODS:
                    yield path, method, node


def log_formats() -> Iterator[str]:
    """The format strings of all log calls, without those that begin with a variable part."""
    for _, _, call in log_calls():
        texts = [a.value for a in call.args if isinstance(a, ast.Constant)]
        if texts and isinstance(texts[0], str) and not texts[0].startswith("%"):
            yield texts[0]


def is_line(line: str, log_format: str) -> bool:
    """Whether a format makes this line, or begins with it."""
    fixed = re.split(r"%[.\d]*[a-z]", log_format)
    whole = ".+".join(re.escape(part) for part in fixed)
    return fixed[0].startswith(line) or re.fullmatch(whole, line) is not None


def test_every_table_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "tables.md").read_text()
    assert [name for name in tables.metadata.tables if name not in text] == []


def test_every_celery_task_is_in_the_guide_and_in_the_reference() -> None:
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


def test_the_layers_of_the_design_are_those_that_import_linter_checks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    kinds = blocks(ROOT / "docs" / "design.md")
    shown = next(text for kind, text in kinds if kind == "text" and "assembly" in text)
    assert [re.split(r" {2,}", line)[0] for line in shown.splitlines()] == layers


def test_the_version_of_the_changelog_is_the_version_of_the_package() -> None:
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == flowengine.__version__
