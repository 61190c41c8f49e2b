"""The catalogue: what workers and documents publish is started by name, without its code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowengine import event_facet, load_program, workflow
from flowengine.assembly import EngineLauncher
from flowengine.authoring import registry
from flowengine.cli import main
from flowengine.errors import (
    InvalidDocument,
    InvalidInputs,
    UnpublishedWorkflow,
    WorkflowNotImported,
    WorkflowNotServed,
)
from flowengine.sdk.execution import ExecuteHandler, Programs
from flowengine.testing import Flow
from flowengine.worker.published_documents import DocumentPublisher
from flowengine.worker.published_workflows import WorkflowPublisher
from tests.integration.engines import watched
from tests.registries import empty_registry

DOCUMENT = """\
description: {about}
inputs: {{n: {{type: integer, default: 1}}}}
tasks: {{a: {{call: cat.f, with: {{n: "${{inputs.n}}"}}}}}}
result: "${{tasks.a.result}}"
"""


@pytest.fixture
def flow(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flow]:
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", database_url)
    with empty_registry(), Flow(store_url=database_url) as flow:
        yield flow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "workflows"
    folder.mkdir()
    (folder / "daily.yml").write_text(DOCUMENT.format(about="first"))
    return folder


def define(times: int) -> None:
    @event_facet(name="cat.f")
    def f(n: int) -> int:
        return n * 2

    @workflow(name="cat.double")
    def double(n: int, note: str = "") -> int:
        """Double a number.

        Not part of the description.
        """
        for _ in range(times):
            n = f(n)
        return n

    @workflow(name="cat.broken")
    def broken() -> int:
        raise RuntimeError("not traceable")


def command(*words: str, expect: int = 0) -> Result:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == expect, result.output
    return result


def names(flow: Flow) -> list[str]:
    return [each.name for each in flow.engine.catalogue.list()]


def result_of(flow: Flow, run: Any) -> Any:
    flow.settle()
    return run.result(timeout=5)


def test_workflows_of_python_and_afl_are_published_and_started_by_name_without_their_code(
    flow: Flow, tmp_path: Path
) -> None:
    define(times=2)
    (tmp_path / "shop.afl").write_text(
        "namespace shop {\n event facet F(n: Long) => (m: Long)\n"
        " workflow Order(n: Long) => (m: Long) andThen { s = F(n = $.n) yield Order(m = s.m) }\n}"
    )
    load_program(tmp_path / "shop.afl")
    WorkflowPublisher().publish(flow.engine)
    assert names(flow) == ["cat.broken", "cat.double", "shop.Order"]
    found = flow.engine.catalogue.get("cat.double")
    assert (found.source, found.description) == ("python", "Double a number.")
    assert found.place.startswith("tests/integration/test_catalogue.py:")
    assert found.inputs["required"] == ["n"]
    assert flow.engine.catalogue.get("shop.Order").source == "afl"
    registry._workflows.clear()  # the facet is code of workers; the workflow is not needed
    assert result_of(flow, flow.engine.start("cat.double", {"n": 3})) == 12
    started = command("start", "cat.double", "-i", "n=5").output.strip()
    info = flow.engine.run(started).info()
    assert (info.workflow, info.state) == ("cat.double", "RUNNING")


def test_messages_and_requests_start_what_only_the_catalogue_has(flow: Flow) -> None:
    define(times=1)
    WorkflowPublisher().publish(flow.engine)
    registry._workflows.clear()
    launcher = EngineLauncher(flow.engine)
    assert result_of(flow, launcher.start_named("cat.double", {"n": 4}, "key")) == 8
    with pytest.raises(WorkflowNotImported):
        launcher.start_named("cat.single", {}, "")
    found = ExecuteHandler(flow.engine, Programs())._found("cat.double", {"n": 5})
    assert result_of(flow, flow.engine.start(*found)) == 10  # type: ignore[arg-type]
    with pytest.raises(WorkflowNotServed):
        ExecuteHandler(flow.engine, Programs())._found("cat.single", {})


def test_a_start_by_name_checks_the_name_and_the_inputs(flow: Flow) -> None:
    define(times=1)
    WorkflowPublisher().publish(flow.engine)
    with pytest.raises(UnpublishedWorkflow, match=r"did you mean 'cat\.double'"):
        flow.engine.start("cat.duble", {"n": 1})
    with pytest.raises(InvalidInputs, match="'m'"):
        flow.engine.start("cat.double", {"m": 1})
    with pytest.raises(InvalidInputs, match="the name and the inputs"):
        flow.engine.start("cat.double", "cat.double", {"n": 1})
    with pytest.raises(InvalidDocument, match=r"RuntimeError: not traceable"):
        flow.engine.start("cat.broken")


def test_unchanged_code_costs_one_statement_and_the_later_start_wins(flow: Flow) -> None:
    define(times=1)
    publisher = WorkflowPublisher()
    publisher.publish(flow.engine)
    asked: list[str] = []
    with watched(flow.engine, lambda text, _: asked.append(text)):
        publisher.publish(flow.engine)
        assert asked == []
        WorkflowPublisher().publish(flow.engine)  # of another process
    if flow.engine.database.has_server:  # statements of SQLite are not seen here
        assert [text.split()[0] for text in asked] == ["SELECT"]
    old = flow.engine.start("cat.double", {"n": 1})
    define(times=3)
    WorkflowPublisher().publish(flow.engine)
    assert result_of(flow, flow.engine.start("cat.double", {"n": 1})) == 8
    assert old.result(timeout=5) == 2  # a run keeps its program


def test_a_document_is_published_kept_while_broken_and_removed_with_its_file(
    flow: Flow, folder: Path
) -> None:
    define(times=1)
    publisher, file = DocumentPublisher(str(folder)), folder / "daily.yml"
    publisher.publish(flow.engine)
    run = flow.engine.start("daily")
    file.write_text("tasks: [")
    (folder / "never.yml").write_text("tasks:\n  a: {}\n")
    publisher.publish(flow.engine)
    assert result_of(flow, flow.engine.start("daily", {"n": 4})) == 8
    with pytest.raises(InvalidDocument, match=r"never.yml:2:3: the task `a` does nothing"):
        flow.engine.start("never")
    listed = command("workflows").output
    assert "ready, newest broken" in listed
    assert "never.yml:2:3: the task `a` does nothing" in listed.replace("\n", "")
    shown = json.loads(command("workflows", "show", "daily", "--json").output)
    assert (shown["description"], shown["problems"][0]["line"]) == ("first", 1)
    file.write_text(DOCUMENT.format(about="second"))
    publisher.publish(flow.engine)
    assert flow.engine.catalogue.get("daily").problems == []
    file.unlink()
    publisher.publish(flow.engine)
    publisher.publish(flow.engine)
    with pytest.raises(UnpublishedWorkflow):
        flow.engine.start("daily")
    assert run.result(timeout=5) == 2


def test_a_worker_that_starts_removes_documents_whose_files_are_gone(
    flow: Flow, folder: Path
) -> None:
    (folder / "other.yml").write_text(f"schedule: '@daily'\n{DOCUMENT.format(about='x')}")
    DocumentPublisher(str(folder)).publish(flow.engine)
    assert names(flow) == ["daily", "other"]
    (folder / "other.yml").unlink()
    publisher = DocumentPublisher(str(folder))
    publisher.publish(flow.engine)
    publisher.publish(flow.engine)
    assert (names(flow), flow.engine.schedules.list()) == (["daily"], [])
    (folder / "daily.yml").unlink()
    DocumentPublisher(str(folder)).publish(flow.engine)  # as if the disk was not mounted
    assert names(flow) == ["daily"]


def test_a_purge_keeps_the_programs_of_the_catalogue(flow: Flow) -> None:
    define(times=1)
    WorkflowPublisher().publish(flow.engine)
    flow.clock.advance(hours=24 * 400)
    flow.engine.purge(older_than=86_400)
    assert result_of(flow, flow.engine.start("cat.double", {"n": 1})) == 2


def test_push_publishes_all_documents_or_none(flow: Flow, folder: Path) -> None:
    define(times=1)
    assert command("push", "workflows").output == "published daily\n"
    assert command("push", "workflows").output == "1 unchanged\n"
    assert result_of(flow, flow.engine.start("daily", {"n": 2})) == 4
    (folder / "bad.yml").write_text("tasks:\n  a: {}\n")
    (folder / "new.yml").write_text(DOCUMENT.format(about="new"))
    refused = command("push", "workflows", expect=1).output
    assert "workflows/bad.yml:2:3: the task `a` does nothing" in refused
    assert names(flow) == ["daily"]
    assert "published new\n" in command("push", "workflows", "--skip-broken", expect=1).output
    assert names(flow) == ["daily", "new"]
    command("workflows", "remove", "new")
    assert names(flow) == ["daily"]


def test_push_checks_documents_with_the_modules_of_the_settings(
    flow: Flow, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pushed_facets.py").write_text(
        "from flowengine import event_facet\n\n"
        '@event_facet(name="cat.f", task_list="io")\ndef f(n: int) -> int:\n    return n\n'
    )
    monkeypatch.setenv("FLOWENGINE_IMPORTS", "pushed_facets")
    (folder / "daily.yml").write_text("tasks: {a: {call: cat.f, with: {m: 1}}}\n")
    try:
        assert "'m'" in command("push", "workflows", expect=1).output
        (folder / "daily.yml").write_text(DOCUMENT.format(about="first"))
        command("push", "workflows")
    finally:
        sys.modules.pop("pushed_facets", None)
    run = flow.engine.start("daily")
    assert [task.task_list_name for task in flow.engine.tasks(run.id)] == ["io"]
