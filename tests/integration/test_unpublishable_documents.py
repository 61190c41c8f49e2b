"""Documents that cannot be read or stored: each stops alone, and none stops the heartbeat."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowengine.documents import compile_document
from flowengine.engine.publication_drafts import Drafts
from flowengine.errors import InvalidDocument
from flowengine.settings import Settings
from flowengine.store.catalogue import Catalogue
from flowengine.store.servers import ServerDefinition, ServerState
from flowengine.testing import Flow
from flowengine.worker import document_folder, published_documents
from flowengine.worker.heartbeat import Heartbeat
from flowengine.worker.published_documents import DocumentPublisher
from tests.registries import empty_registry

TASKS = "tasks: {a: {call: x.y}}\n"


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with empty_registry(), Flow(store_url=database_url) as flow:
        yield flow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "workflows"
    folder.mkdir()
    (folder / "good.yml").write_text(f"schedule: '@daily'\n{TASKS}")
    return folder


def eventually(condition: Callable[[], Any]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)


def test_documents_that_cannot_be_stored_are_listed_as_broken_and_others_are_published(
    flow: Flow, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "nul.yml").write_text(f'description: "a\\0b"\n{TASKS}')
    (folder / "half.yml").write_text(f'description: "a\\ud800b"\n{TASKS}')
    (folder / "inside.yml").write_text('tasks: {a: {call: x.y, with: {v: "a\\ud800b"}}}\n')
    (folder / "huge.yml").write_text(f"tasks: {{a: {{call: x.y, timeout: {'9' * 400}}}}}\n")
    (folder / "ticks.yml").write_text(f'schedule: {{cron: "@daily", name: "a\\0"}}\n{TASKS}')
    (folder / ("n" * 200)).mkdir()
    (folder / ("n" * 200) / f"{'m' * 100}.yml").write_text(TASKS)
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.yml")).write_text(TASKS)
    os.mkfifo(folder / "pipe.yml")
    publisher = DocumentPublisher(str(folder))
    publisher.publish(flow.engine)
    publisher.publish(flow.engine)
    found = {each.name: each for each in flow.engine.catalogue.list()}
    assert len(found) == 9
    broken = [each for each in found.values() if each.problems]
    assert {Path(each.problems[0].file).name for each in broken} == {
        *("nul.yml", "half.yml", "huge.yml", "ticks.yml", f"{'m' * 100}.yml"),
        *("caf\\udce9.yml", "pipe.yml"),
    }
    assert found["nul"].problems[0].what == "the description has the character U+0000: remove it"
    assert "expected a century at most" in found["huge"].problems[0].what
    assert "it is not a regular file" in found["pipe"].problems[0].what
    assert [each.name for each in flow.engine.schedules.list()] == ["good"]
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == len(set(told)) == 7  # once each


def test_a_document_that_only_the_database_refuses_stops_alone(
    flow: Flow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "bad.yml").write_text(TASKS)
    put = Catalogue.put

    def refusing(self: Catalogue, record: Any) -> None:
        if record.name == "bad" and record.program_hash:
            raise OverflowError("Python int too large to convert")
        put(self, record)

    monkeypatch.setattr(Catalogue, "put", refusing)
    DocumentPublisher(str(folder)).publish(flow.engine)
    assert flow.engine.catalogue.get("good").problems == []
    (problem,) = flow.engine.catalogue.get("bad").problems
    assert problem.file == f"{folder}/bad.yml"
    assert "it cannot be stored: Python int too large" in problem.what


def test_a_disk_that_hangs_delays_neither_the_heartbeat_nor_its_jobs(
    flow: Flow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, released, beats = threading.Event(), threading.Event(), []
    content = document_folder._content

    def hang(path: Path) -> bytes:
        hanging.set()
        assert released.wait(20)
        return content(path)

    monkeypatch.setattr(document_folder, "_content", hang)
    monkeypatch.setattr(published_documents, "POLL_SECONDS", 0.01)
    server = ServerDefinition(
        *("s1", "default", "test", "s1"), state=ServerState.RUNNING, boot_id="b1"
    )
    settings = Settings(workflows=str(folder), watchdog_interval=0.01)
    heartbeat = Heartbeat(lambda: flow.engine, settings, server, list, [beats.append])
    heartbeat.start()
    try:
        assert hanging.wait(20)
        seen = len(beats)
        eventually(lambda: len(beats) > seen + 3)
        assert flow.engine.catalogue.list() == []
        released.set()
        eventually(flow.engine.catalogue.list)
    finally:
        released.set()
        heartbeat.stop()
    assert not [t for t in threading.enumerate() if t.name == "flowengine-documents"]


def test_an_error_of_publication_is_logged_once_and_publication_goes_on(
    flow: Flow,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(published_documents, "POLL_SECONDS", 0.01)
    calls: list[int] = []
    of = Drafts.of

    def failing(self: Drafts, *args: Any) -> Any:
        calls.append(1)
        if len(calls) < 4:
            raise RuntimeError("a defect")
        return of(self, *args)

    monkeypatch.setattr(Drafts, "of", failing)
    publisher = DocumentPublisher(str(folder))
    publisher.start(lambda: flow.engine)
    try:
        eventually(flow.engine.catalogue.list)
    finally:
        publisher.stop(20)
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{folder}: RuntimeError: a defect" in told


def test_linked_folders_are_followed_and_a_cycle_ends(folder: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "x.yml").write_text(TASKS)
    (shared / "back").symlink_to(folder)
    (folder / "team").symlink_to(shared)
    (folder / "self").symlink_to(".")
    assert list(document_folder.load_folder(folder).compiled) == ["good", "team.x"]


def test_a_folder_with_too_many_entries_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_folder, "MAX_ENTRIES", 2)
    for number in range(3):
        (folder / f"{number}.txt").write_text("")
    with pytest.raises(OSError, match="more than 2 files"):
        document_folder.list_folder(folder)


@pytest.mark.parametrize("part", ["${", "${inputs ", "${inputs.x}"])
def test_the_time_to_read_expressions_grows_with_the_text_not_with_its_square(part: str) -> None:
    text = part * (100_000 // len(part))
    for task in (f"sh: '{text}'", f"call: x.y, with: {{v: '{text}'}}"):
        begun = time.process_time()
        with suppress(InvalidDocument):
            compile_document(f"inputs: {{x: text}}\ntasks: {{a: {{{task}}}}}\n", "w", "w.yml")
        assert time.process_time() - begun < 5  # with the square, a minute
