"""Commands in documents, and the limits of a document on its runs and tasks."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from flowengine import event_facet
from flowengine.authoring.tracer import declaration_of
from flowengine.cli import main
from flowengine.cli.run_view import run_tree
from flowengine.documents import compile_document, link_document, read_document
from flowengine.engine.presentation import outstanding
from flowengine.engine.recovery import alarm_unserved_tasks
from flowengine.errors import ActionRefused, InvalidDocument, InvalidInputs
from flowengine.library import offer_commands, run, sh, uv
from flowengine.program.commands import COMMANDS, FIELDS
from flowengine.settings import Settings
from flowengine.testing import Flow
from tests.integration.threads import in_threads
from tests.registries import empty_registry

DAILY = """\
schedule: {cron: "30 2 * * *", timezone: Europe/Berlin, overlap: skip, catch_up: last}
inputs: {day: {type: date, default: "${tick.date}"}}
concurrency: {runs: 1, tasks: 4}
tasks:
  fetch: {run: [printf, "%s\\\\n", "shop/${inputs.day}"], retry: {attempts: 4}, timeout: 10m}
  clean: {uv: {script: jobs/clean.py, packages: [polars]}, stdin: "${tasks.fetch.stdout}"}
  load:  {call: shop.load, with: {rows: "${tasks.clean.output.rows}"}}
  tidy:  {run: [rm, -rf, scratch], depends: [load], on: ended}
result: "${tasks.load.result}"
"""
#: Stands for uv: packages would have to be downloaded.
UV = '#!/bin/sh\nshift $(($# - 1))\nexec python "$1"\n'
CLEAN = """\
import json, os, sys
rows = sys.stdin.read().split()
with open(os.environ["FLOWENGINE_OUTPUT"], "a") as file:
    print("rows=" + json.dumps(rows), file=file)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(UV)
    (tmp_path / "bin" / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return tmp_path


@pytest.fixture
def flow(place: Path) -> Iterator[Flow]:
    with empty_registry():
        offer_commands(Settings(commands=True))
        event_facet(name="shop.load")(load)
        with Flow() as made:
            yield made


def load(rows: list[str]) -> list[str]:
    return [row.upper() for row in rows]


def start(flow: Flow, text: str, **inputs: Any) -> Any:
    document = compile_document(text, "w", "w.yml")
    return flow.engine.start(document.program, "w", inputs)


def result_of(flow: Flow, text: str, **inputs: Any) -> Any:
    started = start(flow, text, **inputs)
    flow.settle()
    return started.result(timeout=5)


def test_a_document_of_commands_and_calls_runs(flow: Flow, place: Path) -> None:
    (place / "jobs").mkdir()
    (place / "jobs" / "clean.py").write_text(CLEAN)
    (place / "scratch").mkdir()
    assert result_of(flow, DAILY, day="2026-11-15") == ["SHOP/2026-11-15"]
    assert not (place / "scratch").exists()


def test_the_result_of_a_command_has_its_fields(flow: Flow) -> None:
    text = """\
tasks:
  a: {sh: 'echo N=[1,2] > $FLOWENGINE_OUTPUT; cat', stdin: 5, env: {x: 1}}
result: ["${tasks.a.exit_code}", "${tasks.a.signal}", "${tasks.a.stdout}", "${tasks.a.output.N[1]}"]
"""
    assert result_of(flow, text) == [0, "", "5", 2]


def test_values_reach_a_shell_only_through_its_environment(flow: Flow, place: Path) -> None:
    text = """\
inputs: {name: text}
tasks:
  a: {sh: 'printf %s "${name}"', env: {name: "${inputs.name}"}, directory: "."}
  b: {run: [printf, "%s-%s", "${inputs.name}", 07]}
result: "${tasks.a.stdout} ${tasks.b.stdout}"
"""
    evil = f'"; touch {place}/harm; `touch {place}/harm` $(touch {place}/harm)'
    assert result_of(flow, text, name=evil) == f"{evil} {evil}-07"
    assert not (place / "harm").exists()
    refused = "inputs: {name: text}\ntasks:\n  a: {sh: 'echo ${inputs.name}'}\n"
    with pytest.raises(InvalidDocument) as caught:
        compile_document(refused, "w", "w.yml")
    assert str(caught.value.problems[0]).startswith("w.yml:3:17: a value in the text of a shell")


def test_files_of_the_original_form_run(flow: Flow, place: Path) -> None:
    text = """\
name: Nightly copy
description: three tasks, two of them beside each other
cron: "0/10 * * * * *"
start_time: 2025-01-20T12:30:00+00:00
tasks:
  first:
    name: first
    description: shows where it is
    config:
      !Subprocess
      cmd: "pwd"
      args: []
      working_directory: ./data
  second:
    name: second
    depends: ["first"]
    config:
      !Subprocess
      cmd: echo
      args:
        - ${HOME}
        - 2
  third:
    name: third
    depends: ["first"]
    config:
      !UvPython
      script_path: ./clean.py
      packages:
        - pandas>=2.3.1,<3.0.0
      is_uv_project: false
      working_directory: ./data
"""
    (place / "data").mkdir()
    (place / "data" / "clean.py").write_text("print('clean')")
    started = start(flow, text)
    flow.settle()
    assert states([started]) == ["COMPLETED"]
    steps = [step for step in started.steps() if step.facet.startswith("command.")]
    said = {step.path: step.returns["result"]["stdout"] for step in steps}
    expected = {"w.first": f"{place}/data\n", "w.second": "${HOME} 2\n", "w.third": "clean\n"}
    assert said == expected


def test_documents_declare_commands_as_the_library_does() -> None:
    for facet in (run, sh, uv):
        traced, declared = declaration_of(facet.definition)[0], COMMANDS[facet.name]
        plain = [replace(param, schema=None) for param in traced.params]
        assert plain == list(declared.params)
        schema = traced.returns[0].schema
        assert schema is not None
        assert set(schema["properties"]) == set(FIELDS)


def test_where_commands_are_off_the_error_says_so(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", f"sqlite:///{place}/flow.db")
    (place / "w.yml").write_text("tasks: {a: {run: [ls]}}\n")
    done = CliRunner().invoke(main, ["run", "w.yml"])
    assert done.exit_code == 1
    assert "the setting `commands` is off: set FLOWENGINE_COMMANDS=on" in done.output
    with empty_registry(), Flow() as flow:
        started = start(flow, "tasks: {a: {run: [ls]}}\n")
        alarm_unserved_tasks(flow.engine)
        alarm = started.info().alarm
        assert alarm == (
            "waits for a worker of task list 'default' that runs commands (command.run): set "
            "FLOWENGINE_COMMANDS=on for a worker that may run them"
        )


# --- limits ---


@pytest.fixture
def stored(database_url: str) -> Iterator[Flow]:
    with empty_registry(), Flow(store_url=database_url) as made:
        yield made


LIMITED = """\
inputs: {{n: integer}}
concurrency: {{runs: {runs}}}
tasks: {{a: {{call: x.f, with: {{n: "${{inputs.n}}"}}}}}}
"""


def states(runs: list[Any]) -> list[str]:
    return [run.info().state for run in runs]


def test_a_queued_run_tells_its_limit_and_the_run_that_has_its_place(stored: Flow) -> None:
    first, second = (start(stored, LIMITED.format(runs=1), n=n) for n in (1, 2))
    told = f"waits for limit 'runs of w: 1', held by run {first.id[:8]}"
    info = stored.engine.find(second.id[:12])
    assert (info.waits_for.kind, info.waits_for.held_by) == ("limit", first.id)
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(run_tree(info, [], stored.clock.now))
    assert told in console.export_text()
    (listed,) = [run for run in stored.engine.list() if run.id == second.id]
    assert outstanding(0, None, stored.clock.now, listed.waits_for) == told


def test_runs_above_the_limit_wait_as_rows_and_begin_in_order(stored: Flow) -> None:
    event_facet(name="x.f")(lambda n: n)
    document = compile_document(LIMITED.format(runs=2), "w")
    inputs = [{"n": number} for number in range(4)]
    runs = stored.engine.start_many(document.program, "w", inputs)
    runs.append(start(stored, LIMITED.format(runs=2), n=4))
    assert states(runs) == ["RUNNING", "RUNNING", "QUEUED", "QUEUED", "QUEUED"]
    stored.engine.cancel(runs[2].id)
    worker = stored.worker("w1")
    worker.work_on(worker.claim(runs[0], "a"))
    assert states(runs) == ["COMPLETED", "RUNNING", "CANCELLED", "RUNNING", "QUEUED"]
    stored.settle()
    assert states(runs) == ["COMPLETED", "COMPLETED", "CANCELLED", "COMPLETED", "COMPLETED"]


def test_a_run_counts_against_the_limit_of_its_own_program(stored: Flow) -> None:
    one, two = (LIMITED.format(runs=runs) for runs in (1, 2))
    runs = [start(stored, one, n=1), start(stored, two, n=2), start(stored, one, n=3)]
    assert states(runs) == ["RUNNING", "RUNNING", "QUEUED"]
    stored.engine.cancel(runs[0].id)
    assert states(runs[1:]) == ["RUNNING", "QUEUED"]  # one other is open
    stored.engine.cancel(runs[1].id)
    assert states(runs[2:]) == ["RUNNING"]


def test_recovery_begins_a_run_whose_starter_died(
    stored: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(stored.engine.after_commit, "begin_queued", lambda *_: None)
        run = start(stored, LIMITED.format(runs=1), n=1)
    assert states([run]) == ["QUEUED"]
    stored.watchdog()
    assert states([run]) == ["RUNNING"]


def test_a_limited_workflow_takes_no_singleton_key_and_its_place_is_not_taken_twice(
    stored: Flow,
) -> None:
    document = compile_document(LIMITED.format(runs=1), "w")
    for key in ("mine", "flowengine.runs:1"):
        with pytest.raises(InvalidInputs, match="singleton key"):
            stored.engine.start(document.program, "w", {"n": 1}, singleton=key)
    first = start(stored, LIMITED.format(runs=1), n=1)
    stored.engine.cancel(first.id)
    second = start(stored, LIMITED.format(runs=1), n=2)
    with pytest.raises(ActionRefused, match=f"run {second.id} has taken its place"):
        stored.engine.retry(first.id)


def test_a_schedule_skips_a_tick_that_finds_no_place(stored: Flow) -> None:
    limited = LIMITED.format(runs=1).replace("{n: integer}", "{n: {type: integer, default: 1}}")
    text = f"schedule: {{every: 1h, overlap: skip, catch_up: last}}\n{limited}"
    document = compile_document(text, "w")
    stored.engine.schedules.put(document.program, "w", document.schedules[0])
    by_hand = stored.engine.start(document.program, "w", {})
    stored.clock.advance(hours=1)
    stored.watchdog()
    (tick,) = stored.engine.schedules.ticks("w")
    assert (tick.outcome, tick.reason) == ("skipped", "running")
    stored.engine.cancel(by_hand.id)
    stored.clock.advance(hours=1)
    stored.watchdog()
    assert stored.engine.schedules.ticks("w")[0].outcome == "started"


def test_tasks_are_limited_within_each_run(stored: Flow) -> None:
    event_facet(name="x.f")(lambda: None)
    tasks = {f"t{number}": {"call": "x.f"} for number in range(4)}
    text = json.dumps({"concurrency": {"tasks": 2}, "tasks": tasks})
    runs = [start(stored, text), start(stored, text)]
    for each in runs:
        waiting = [step for step in each.steps() if step.blocked_on]
        assert len(waiting) == 2
    stored.settle()
    assert states(runs) == ["COMPLETED", "COMPLETED"]


def test_the_limit_holds_while_runs_are_started_and_ended_at_the_same_moment(
    stored: Flow,
) -> None:
    event_facet(name="x.f")(lambda n: n)
    program = compile_document(LIMITED.format(runs=3), "w").program

    def work(number: int) -> list[str]:
        worker, engine = stored.worker(f"w{number}"), stored.engine
        own = [engine.start(program, "w", {"n": n}).id for n in range(4)]
        while any(engine.get(run_id).state != "COMPLETED" for run_id in own):
            task = worker.claim_next()
            if task is not None:
                worker.work_on(task)
            assert len(engine.list(state="RUNNING")) <= 3
        return own

    calls = [partial(work, number) for number in range(4)]
    assert len({run_id for own in in_threads(calls) for run_id in own}) == 16


def test_child_runs_and_starts_in_a_transaction_wait_for_a_place(stored: Flow) -> None:
    event_facet(name="x.f")(lambda n: n)
    inner = read_document(LIMITED.format(runs=1), "inner")
    tasks = "{a: {workflow: inner, with: {n: 1}}, b: {workflow: inner, with: {n: 2}}}"
    outer = link_document(read_document(f"tasks: {tasks}", "outer"), {"inner": inner})
    runs = [stored.engine.start(outer.program, "outer", {}) for _ in range(2)]
    stored.settle()
    assert states(runs) == ["COMPLETED", "COMPLETED"]
    children = stored.engine.list(workflow="inner")
    assert [child.state for child in children] == ["COMPLETED"] * 4

    again = stored.engine.start(outer.program, "outer", {})
    worker = stored.worker("w1")
    for name in ("a", "b"):
        worker.work_on(worker.claim(again, name))  # it starts the child run
    stored.engine.cancel(again.id)
    children = stored.engine.list(parent=again.id)
    assert {child.state for child in children} == {"CANCELLED"}
    program = compile_document(LIMITED.format(runs=1), "w").program
    with stored.engine.database.engine.begin() as connection:
        late = stored.engine.start(program, "w", {"n": 1}, connection=connection)
    assert states([late]) == ["RUNNING"]
