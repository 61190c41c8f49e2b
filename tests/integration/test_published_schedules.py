"""Schedules of documents: rows of the catalogue's own transaction, whoever has written them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from flowengine.documents import compiler
from flowengine.engine.publications import Publications
from flowengine.scheduling import Schedule
from flowengine.testing import Flow
from flowengine.worker import document_folder
from flowengine.worker.document_folder import load_folder
from flowengine.worker.published_documents import DocumentPublisher, publish_documents
from tests.registries import empty_registry

TASKS = "tasks: {a: {call: x.y}}\n"
SCHEDULED = f"schedule: '0 1 * * *'\n{TASKS}"
NIGHTLY = "schedule: {cron: '0 1 * * *', name: nightly}\n" + TASKS


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with empty_registry(), Flow(store_url=database_url) as flow:
        yield flow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "workflows"
    folder.mkdir()
    return folder


def schedules(flow: Flow) -> list[tuple[str, str, str]]:
    return [(each.name, each.workflow, each.state) for each in flow.engine.schedules.list()]


def workflows(flow: Flow) -> list[str]:
    return [each.name for each in flow.engine.catalogue.list()]


def test_a_schedule_that_moves_to_another_document_is_kept_with_its_pause(
    flow: Flow, folder: Path
) -> None:
    publisher = DocumentPublisher(str(folder))
    (folder / "b.yml").write_text(NIGHTLY)
    (folder / "a.yml").write_text(TASKS)
    publisher.publish(flow.engine)
    flow.engine.schedules.pause("nightly", actor="eva")
    (folder / "a.yml").write_text(NIGHTLY)
    (folder / "b.yml").write_text(TASKS)
    publisher.publish(flow.engine)
    assert schedules(flow) == [("nightly", "a", "paused")]
    (folder / "a.yml").rename(folder / "c.yml")
    publisher.publish(flow.engine)
    publisher.publish(flow.engine)
    assert schedules(flow) == [("nightly", "c", "paused")]
    assert workflows(flow) == ["b", "c"]


@pytest.mark.parametrize("is_pushed", [False, True])
def test_a_schedule_that_left_its_document_while_no_worker_ran_is_removed(
    flow: Flow, folder: Path, is_pushed: bool
) -> None:
    def publish() -> None:
        if is_pushed:
            publish_documents(flow.engine, load_folder(folder), "pushed")
        else:
            DocumentPublisher(str(folder)).publish(flow.engine)

    (folder / "a.yml").write_text(SCHEDULED)
    publish()
    assert schedules(flow) == [("a", "a", "active")]
    (folder / "a.yml").write_text(TASKS)
    publish()
    assert (schedules(flow), workflows(flow)) == ([], ["a"])


def test_a_removal_of_a_document_and_its_schedule_is_one_commit(
    flow: Flow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (folder / f"{name}.yml").write_text(SCHEDULED)
    publisher = DocumentPublisher(str(folder))
    publisher.publish(flow.engine)
    (folder / "a.yml").unlink()
    publisher.publish(flow.engine)

    def away(*_: object) -> None:
        raise ConnectionError("the database went away")

    with monkeypatch.context() as patch:
        patch.setattr(Publications, "_put_schedules", away)
        with pytest.raises(ConnectionError):
            publisher.publish(flow.engine)
    assert workflows(flow) == ["a", "b"]  # rolled back with it
    publisher.publish(flow.engine)
    assert (workflows(flow), schedules(flow)) == (["b"], [("b", "b", "active")])


def test_a_removed_workflow_takes_its_schedules_with_it(flow: Flow, folder: Path) -> None:
    (folder / "a.yml").write_text(NIGHTLY)
    publish_documents(flow.engine, load_folder(folder), "pushed")
    flow.engine.catalogue.remove("a")
    assert (workflows(flow), schedules(flow)) == ([], [])


def test_a_pause_survives_a_file_that_is_away_for_a_poll(flow: Flow, folder: Path) -> None:
    file, publisher = folder / "a.yml", DocumentPublisher(str(folder))
    file.write_text(SCHEDULED)
    publisher.publish(flow.engine)
    flow.engine.schedules.pause("a", actor="eva")
    file.rename(folder / "away")
    publisher.publish(flow.engine)
    (folder / "away").rename(file)
    publisher.publish(flow.engine)
    publisher.publish(flow.engine)
    assert schedules(flow) == [("a", "a", "paused")]


def test_two_documents_with_one_name_of_a_schedule_are_refused_with_both_places(
    flow: Flow, folder: Path
) -> None:
    (folder / "a.yml").write_text(NIGHTLY)
    publisher = DocumentPublisher(str(folder))
    publisher.publish(flow.engine)
    (folder / "b.yml").write_text(NIGHTLY)
    found = load_folder(folder)
    assert [each.file for each in found.all_problems()] == [f"{folder}/{n}.yml" for n in "ab"]
    assert f"`nightly` is also that of {folder}/b.yml" in found.problems["a"][0].what
    publisher.publish(flow.engine)
    assert schedules(flow) == [("nightly", "a", "active")]  # of its last good version


def test_a_schedule_of_another_workflow_is_not_taken_and_the_document_is_listed_as_broken(
    flow: Flow, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "a.yml").write_text(NIGHTLY)
    publish_documents(flow.engine, load_folder(folder), "pushed")
    other = tmp_path / "other"
    other.mkdir()
    (other / "b.yml").write_text(NIGHTLY)
    (other / "c.yml").write_text(TASKS)
    publisher = DocumentPublisher(str(other))
    publisher.publish(flow.engine)
    publisher.publish(flow.engine)
    assert schedules(flow) == [("nightly", "a", "active")]
    (problem,) = flow.engine.catalogue.get("b").problems
    assert problem.file == f"{other}/b.yml"
    assert f"that of the workflow `a` ({folder}/a.yml)" in problem.what
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    flow.engine.catalogue.remove("a")
    publisher.publish(flow.engine)  # without a change of the file
    assert schedules(flow) == [("nightly", "b", "active")]
    assert flow.engine.catalogue.get("b").problems == []


def test_a_document_that_becomes_broken_keeps_a_schedule_that_another_one_wants(
    flow: Flow, folder: Path
) -> None:
    publisher = DocumentPublisher(str(folder))
    (folder / "a.yml").write_text(NIGHTLY)
    publisher.publish(flow.engine)
    (folder / "a.yml").write_text(f'description: "a\\0b"\n{TASKS}')
    (folder / "b.yml").write_text(NIGHTLY)
    publisher.publish(flow.engine)
    assert schedules(flow) == [("nightly", "a", "active")]
    assert "is that of the workflow `a`" in flow.engine.catalogue.get("b").problems[0].what
    (folder / "a.yml").write_text(TASKS)
    publisher.publish(flow.engine)
    assert schedules(flow) == [("nightly", "b", "active")]


def test_only_changed_documents_are_compiled_and_written(
    flow: Flow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (folder / f"d{number}.yml").write_text(SCHEDULED)
    (folder / "outer.yml").write_text("tasks: {a: {workflow: d0}}\n")
    publisher = DocumentPublisher(str(folder))
    publisher.publish(flow.engine)
    updated = {each.name: each.updated for each in flow.engine.catalogue.list()}
    compiled: list[str] = []

    def link(document: compiler.ReadDocument, *args: object, **options: object) -> object:
        compiled.append(document.name)
        return compiler.link_document(document, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(document_folder, "link_document", link)
    put: list[str] = []
    keep = flow.engine.catalogue.publish.__self__._definitions.put  # type: ignore[attr-defined]

    def counted(session: object, workflow: str, *args: object, **options: object) -> object:
        put.append(workflow)
        return keep(session, workflow, *args, **options)

    publications = flow.engine.catalogue.publish.__self__  # type: ignore[attr-defined]
    monkeypatch.setattr(publications._definitions, "put", counted)
    flow.clock.advance(seconds=1)
    (folder / "d0.yml").write_text(f"description: x\n{SCHEDULED}")
    (folder / "d1.yml").touch()
    publisher.publish(flow.engine)
    after = {each.name: each.updated for each in flow.engine.catalogue.list()}
    assert compiled == ["d0", "outer"]
    assert put == ["d0"]
    assert [name for name in after if after[name] != updated[name]] == ["d0"]


def test_a_schedule_of_a_document_that_the_catalogue_has_lost_is_removed(
    flow: Flow, folder: Path
) -> None:
    (folder / "a.yml").write_text(SCHEDULED)
    (folder / "b.yml").write_text(TASKS)
    publisher = DocumentPublisher(str(folder))
    publisher.publish(flow.engine)
    with flow.engine.database.write() as session:
        session.catalogue.remove("a")  # as earlier versions did
    (folder / "a.yml").unlink()
    by_hand = load_folder(folder).compiled["b"]
    flow.engine.schedules.put(by_hand.program, "b", Schedule("@daily", name="own"))
    DocumentPublisher(str(folder)).publish(flow.engine)
    assert schedules(flow) == [("own", "b", "active")]


def write(folder: Path, text: str) -> None:
    for name in "ab":
        (folder / f"{name}.yml").write_text(text)


def deadlock(flow: Flow, publication: threading.Thread) -> None:
    """Start a publication that waits for a row of ours, and wait for one of its rows."""
    touch = "UPDATE flowengine_workflow SET updated = updated WHERE name = %s RETURNING name"
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"  # unlike pg_stat_activity, read each time
    with flow.engine.database.write() as session:
        session.rows(touch, ("b",))
        publication.start()
        ends = time.monotonic() + 20
        while not session.rows(waiting):
            assert time.monotonic() < ends, "the publication does not wait for the row"
            time.sleep(0.01)
        session.rows(touch, ("a",))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_publication_that_deadlocks_with_another_transaction_is_repeated(
    flow: Flow, folder: Path
) -> None:
    publisher = DocumentPublisher(str(folder))
    is_repeated, ends = False, time.monotonic() + 60
    while not is_repeated:
        assert time.monotonic() < ends, "the publication was never the one that gave up"
        write(folder, TASKS)
        publisher.publish(flow.engine)
        write(folder, SCHEDULED)
        thread = threading.Thread(target=publisher.publish, args=(flow.engine,))
        # PostgreSQL ends the transaction that notices the deadlock after a second of waiting. It is
        # ours if this thread was suspended for that second: then once more.
        with suppress(OperationalError):
            deadlock(flow, thread)
            is_repeated = True
        thread.join(20)
    assert schedules(flow) == [("a", "a", "active"), ("b", "b", "active")]
