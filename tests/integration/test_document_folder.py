"""A folder of documents: published, checked and started; a broken document stops alone."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowengine import event_facet, workflow
from flowengine.cli import main
from flowengine.testing import Flow
from flowengine.worker.document_folder import load_folder
from flowengine.worker.published_documents import DocumentPublisher

GOOD = """\
schedule: {{cron: "{cron}"}}
inputs: {{day: {{type: date, default: "${{tick.date}}"}}}}
tasks:
  note: {{call: papers.note, with: {{day: "${{inputs.day}}"}}}}
result: "${{tasks.note.result}}"
"""


@event_facet(name="papers.note")
def note(day: str, times: int = 1) -> str:
    return day * times


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", f"sqlite:///{tmp_path}/flow.db")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "workflows"
    (folder / "etl").mkdir(parents=True)
    (folder / "etl" / "daily.yml").write_text(GOOD.format(cron="30 2 * * *"))
    (folder / "README").write_text("not a document")
    (folder / ".hidden.yml").write_text("[")
    return folder


@pytest.fixture
def flow(folder: Path) -> Iterator[Flow]:
    with Flow(store_url=os.environ["FLOWENGINE_DATABASE_URL"]) as flow:
        yield flow


def command(*words: str, expect: int = 0) -> Result:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == expect, result.output
    return result


def test_a_broken_document_is_reported_and_the_others_are_published(
    flow: Flow, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "bad.yml").write_text('schedule: "61 * * * *"\ntasks: {a: {call: papers.note}}\n')
    publisher = DocumentPublisher(str(folder))
    with caplog.at_level(logging.ERROR, "flowengine"):
        publisher.publish(flow.engine)
        publisher.publish(flow.engine)
    told = [
        r.getMessage() for r in caplog.records if getattr(r, "action", "") == "document_refused"
    ]
    assert len(told) == 2  # the cron expression, and the missing argument; each once
    assert all(f"{folder}/bad.yml:" in each for each in told)
    (schedule,) = flow.engine.schedules.list()
    assert (schedule.name, schedule.source) == ("etl.daily", "document")


def test_a_change_is_published_without_a_restart_and_a_broken_one_keeps_its_last_version(
    flow: Flow, folder: Path
) -> None:
    publisher, file = DocumentPublisher(str(folder)), folder / "etl" / "daily.yml"
    publisher.publish(flow.engine)
    file.write_text(GOOD.format(cron="45 3 * * *"))
    publisher.publish(flow.engine)
    assert flow.engine.schedules.get("etl.daily").schedule.cron == "45 3 * * *"
    file.write_text("tasks: [")
    publisher.publish(flow.engine)
    assert flow.engine.schedules.get("etl.daily").schedule.cron == "45 3 * * *"
    file.unlink()
    publisher.publish(flow.engine)
    publisher.publish(flow.engine)
    assert flow.engine.schedules.list() == []


def test_an_unchanged_folder_asks_nothing_of_the_database(
    flow: Flow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = DocumentPublisher(str(folder))
    publisher.publish(flow.engine)
    monkeypatch.setattr(flow.engine.catalogue, "publish", None)
    publisher.publish(flow.engine)


def test_a_folder_that_is_away_has_not_lost_its_schedules(
    flow: Flow, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = DocumentPublisher(str(folder))
    publisher.publish(flow.engine)
    folder.rename(folder.with_name("away"))
    with caplog.at_level(logging.ERROR, "flowengine"):
        publisher.publish(flow.engine)
        publisher.publish(flow.engine)
    (told,) = [r.getMessage() for r in caplog.records if r.name == "flowengine"]
    assert f"the folder {folder} cannot be read" in told
    assert [each.name for each in flow.engine.schedules.list()] == ["etl.daily"]


def test_a_folder_that_cannot_be_listed_is_reported_keeps_its_documents_and_stops_no_others(
    flow: Flow, folder: Path
) -> None:
    publisher, team = DocumentPublisher(str(folder)), folder / "etl"
    publisher.publish(flow.engine)
    away = team.rename(folder.with_name("away"))
    team.symlink_to("etl")  # leads to itself; permissions do not stop root
    (folder / "new.yml").write_text("tasks: {a: {call: papers.note, with: {day: x}}}\n")
    for _ in range(3):  # what is missing at two polls is removed
        publisher.publish(flow.engine)
    catalogue = flow.engine.catalogue
    listed = {each.name: each.problems for each in catalogue.list()}
    (problem,) = listed.pop("etl/")
    assert str(problem).startswith(f"{team}:1:1: the folder cannot be read: ")
    assert listed == {"etl.daily": [], "new": []}
    assert [each.name for each in flow.engine.schedules.list()] == ["etl.daily"]
    assert f"{team}:1:1" in command("check", str(folder), expect=1).output
    team.unlink()
    away.rename(team)
    for _ in range(2):
        publisher.publish(flow.engine)
    assert [each.name for each in catalogue.list()] == ["etl.daily", "new"]


def test_a_workflow_in_python_that_cannot_be_traced_stops_only_the_documents_that_start_it(
    folder: Path,
) -> None:
    @workflow(name="papers.untraceable")
    def untraceable(day: str) -> str:
        raise RuntimeError("not traceable")

    (folder / "outer.yml").write_text("tasks:\n  a: {workflow: papers.untraceable}\n")
    found = load_folder(folder)
    assert list(found.compiled) == ["etl.daily"]
    assert "cannot be used: not traceable" in found.all_problems()[0].what


def test_a_hundred_reloads_leak_no_descriptor_and_change_no_run_under_way(
    flow: Flow, folder: Path
) -> None:
    publisher, file = DocumentPublisher(str(folder)), folder / "etl" / "daily.yml"

    def reload(number: int) -> None:
        content = GOOD.format(cron=f"{number % 60} 2 * * *")
        file.write_text(content.replace("result:", f"deadline: {number + 1}d\nresult:"))
        publisher.publish(flow.engine)

    reload(0)
    runs = [flow.engine.start("etl.daily", {"day": "2026-11-15"}) for _ in range(50)]
    programs = {task.flow_id for run in runs for task in flow.engine.tasks(run.id)}
    assert len(programs) == 1
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 101):
        reload(number)
    # Not equal: descriptors of an earlier test may be closed meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before
    newest = flow.engine.start("etl.daily", {"day": "2026-11-16"})
    assert {task.flow_id for run in runs for task in flow.engine.tasks(run.id)} == programs
    assert {task.flow_id for task in flow.engine.tasks(newest.id)}.isdisjoint(programs)
    flow.settle()
    assert {run.result(timeout=5) for run in runs} == {"2026-11-15"}


BROKEN = {
    "unknown.yml": ("tasks: {a: {call: papers.note, depends: [b]}}", "there is no task `b`"),
    "cycle.yml": (
        "tasks: {a: {wait: 1s, depends: [b]}, b: {wait: 1s, depends: [a]}}",
        "wait for each other in a cycle",
    ),
    "cron.yml": ("schedule: '61 * * * *'\ntasks: {a: {wait: 1s}}", "61"),
    "zone.yml": ("schedule: {every: 1h, timezone: Mars}\ntasks: {a: {wait: 1s}}", "time zone"),
    "twice.yml": ("tasks: {a: {wait: 1s}, a: {wait: 1s}}", "is given twice"),
}


def test_each_broken_document_is_reported_with_its_place_and_the_others_run(
    flow: Flow, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, (text, _) in BROKEN.items():
        (folder / name).write_text(text)
    with caplog.at_level(logging.ERROR, "flowengine"):
        DocumentPublisher(str(folder)).publish(flow.engine)
    told = [record.getMessage() for record in caplog.records]
    for name, (_, problem) in BROKEN.items():
        assert any(f"{folder}/{name}:" in each and problem in each for each in told), told
    run = flow.engine.start("etl.daily", {"day": "2026-11-15"})
    flow.settle()
    assert run.result(timeout=5) == "2026-11-15"


def test_a_workflow_is_started_by_its_name(flow: Flow, folder: Path) -> None:
    started = command("start", "etl.daily", "--workflows", "workflows", "-i", "day=2026-11-15")
    info = flow.engine.run(started.output.strip()).info()
    assert (info.workflow, info.state) == ("etl.daily", "RUNNING")
    unknown = command("start", "etl.dayly", "--workflows", "workflows", expect=1)
    assert "there is no workflow 'etl.dayly'" in unknown.output
    wrong = command("start", "etl.daily", "--workflows", "workflows", "-i", "dai=1", expect=1)
    assert "did you mean 'day'?" in wrong.output


def test_a_broken_document_is_not_started(flow: Flow, folder: Path) -> None:
    (folder / "bad.yml").write_text("tasks:\n  a: {}\n")
    result = command("start", "bad", "--workflows", "workflows", expect=1)
    assert "workflows/bad.yml:2:3: the task `a` does nothing" in result.output


def test_check_prints_each_problem_with_its_place(folder: Path) -> None:
    assert "1 workflow" in command("check", "workflows").output
    (folder / "bad.yml").write_text("tasks:\n  a: {call: papers.note, needs: [b]}\n")
    result = command("check", "workflows", expect=1)
    assert "workflows/bad.yml:2:26: unknown key `needs`; did you mean `depends`?" in result.output
    listed = json.loads(command("check", "workflows", "--json", expect=1).output)
    places = [(each["file"], each["line"], each["column"]) for each in listed["problems"]]
    assert ("workflows/bad.yml", 2, 26) in places


def test_a_facet_that_its_module_lacks_is_a_warning_of_check(folder: Path) -> None:
    (folder / "typo.yml").write_text("tasks: {a: {call: papers.noet}, b: {call: other.facet}}\n")
    told = "`papers`, as it is imported here, has no event facet `papers.noet`; did you mean"
    shown = command("check", "workflows").output
    assert shown.startswith(f"workflows/typo.yml:1:19: ! {told} `papers.note`?\n")
    assert "no problems, 1 warning" in shown
    (warning,) = json.loads(command("check", "workflows", "--json").output)["warnings"]
    assert (warning["file"], warning["line"], warning["column"]) == ("workflows/typo.yml", 1, 19)


def test_scripts_beside_documents_are_not_imported_and_hide_no_problem(folder: Path) -> None:
    (folder / "script.py").write_text("raise SystemExit('it was run')\n")
    (folder / "bad.yml").write_text("tasks: {task: {call: x.y, depends: [tusk]}}\n")
    for target in ("workflows", "workflows/"):
        told = command("check", target, expect=1).output
        assert "bad.yml:1:37: there is no task `tusk`; did you mean `task`?\n1 problem (2 " in told


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    (folder / "etl.daily.yaml").write_text(GOOD.format(cron="@daily"))
    found = load_folder(folder)
    assert not found.compiled
    told = found.all_problems()[0].what
    assert told == f"{folder / 'etl' / 'daily.yml'} is the workflow `etl.daily`, too: rename one"


def test_schema_prints_json() -> None:
    assert json.loads(command("schema").output)["title"] == "Document"
