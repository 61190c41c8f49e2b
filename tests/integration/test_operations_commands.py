"""`flowengine list history export purge doctor`, as a person types them."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from flowengine import Retry, attempt, event_facet, foreach, sleep, wait_for, workflow
from flowengine.cli import main
from flowengine.cli.run_filters import STATES, WAITS
from flowengine.engine.waits_for import WaitKind
from flowengine.store.run_lists import ALL_STATES
from flowengine.testing import Flow, replay

Command = Callable[..., Result]
FAILS: list[str] = []


@event_facet(name="operations.work", retry=Retry(attempts=2, first_wait=1))
def work(n: int) -> int:
    if FAILS:
        raise ConnectionError(FAILS.pop())
    return n


@workflow(name="operations.one")
def one(n: int) -> int:
    return work(n)


@workflow(name="operations.asks")
def asks() -> int:
    return wait_for("size", int)


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    FAILS.clear()
    with Flow(store_url=f"sqlite:///{tmp_path}/flow.db") as flow:
        yield flow


@pytest.fixture
def command(tmp_path: Path) -> Command:
    environment = {"FLOWENGINE_DATABASE_URL": f"sqlite:///{tmp_path}/flow.db", "COLUMNS": "200"}

    def invoke(*arguments: str, code: int = 0) -> Result:
        done = runner().invoke(main, list(arguments), env=environment)
        assert done.exit_code == code, done.output + done.stderr
        return done

    return invoke


def runner() -> CliRunner:
    """A runner that keeps the two streams apart: before 8.2 click mixes them by default."""
    if "mix_stderr" in inspect.signature(CliRunner).parameters:
        return CliRunner(mix_stderr=False)  # type: ignore[call-arg]
    return CliRunner()


def test_choices_are_the_states_and_waits_of_the_engine() -> None:
    assert set(WAITS) == set(WaitKind)
    assert set(STATES) >= set(ALL_STATES)


def test_list_filters_and_continues(flow: Flow, command: Command) -> None:
    runs = [one.options(labels={"team": "a"}, key=f"k{n}").start(n) for n in range(3)]
    asked = asks.start()
    flow.settle()

    def listed(*arguments: str) -> list[str]:
        return [run["id"] for run in json.loads(command("list", "--json", *arguments).stdout)]

    assert listed("--state", "running") == [asked.id]
    assert set(listed("--label", "team=a")) == {run.id for run in runs}
    assert listed("--key", "k1") == [runs[1].id]
    assert listed("--waits-for", "answer") == [asked.id]
    assert listed("--id", asked.id[:10]) == [asked.id]
    assert listed("--workflow", "asks") == [asked.id]
    assert set(listed("--older-than", "1h")) == {asked.id, *(run.id for run in runs)}
    assert listed("--newer-than", "1h") == []
    assert "--cursor" not in command("list", "--limit", "2").stdout, "only a terminal shows it"
    first = command("list", "--limit", "2", "--json")
    cursor = first.stderr.split()[1]
    assert len(listed("--cursor", cursor)) == 2
    assert "waits for the answer 'size'" in command("list", "--state", "running").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["list", "--label", "team"], 2, "'team' is no label: write NAME=VALUE"),
        (["list", "--older-than", "soon"], 2, "'soon' is no age: it must be a number with a unit"),
        (["list", "--waits-for", "godot"], 2, "'godot' is not one of"),
        (["list", "--server", "nobody"], 1, "the name or id of a server that is registered"),
        (["list", "--cursor", "x"], 1, "the filter cursor is 'x'"),
        (["history", "0" * 32], 1, "no run"),
        (["export", "0" * 32], 1, "no run"),
        (["purge"], 2, "Missing option '--older-than'"),
        (["purge", "--older-than", "30"], 2, "'30' is no age"),
        (["purge", "--older-than", "30d", "--state", "RUNNING"], 2, "is not one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_call_says_what_is_expected(
    flow: Flow, command: Command, arguments: list[str], code: int, message: str
) -> None:
    done = command(*arguments, code=code)
    assert message in done.output + done.stderr


def test_history_shows_commits_in_order(flow: Flow, command: Command) -> None:
    FAILS.append("refused")
    run = one.start(1)
    flow.settle()
    flow.clock.advance(seconds=2)
    flow.settle()
    shown = command("history", run.id[:8]).stdout
    assert "one.work: try 1 failed with ConnectionError" in shown
    assert "↻ one.work  try 2 at" in shown
    assert "✓ one  complete" in shown
    entries: list[dict[str, Any]] = json.loads(command("history", run.id, "--json").stdout)
    assert [entry["revision"] for entry in entries] == [1, 2, 3]
    assert "more with --after 1" in command("history", run.id, "--limit", "1").stdout
    later = json.loads(command("history", run.id, "--after", "2", "--json").stdout)
    assert later == entries[2:]


def test_export_writes_a_file_that_can_be_replayed(
    flow: Flow, command: Command, tmp_path: Path
) -> None:
    run = one.start(1)
    flow.settle()
    file = tmp_path / "run.json"
    assert "is exported to" in command("export", run.id, "-o", str(file)).stdout
    assert file.stat().st_mode & 0o777 == 0o600, "it has inputs and errors"
    assert replay(file).check().outputs == {"result": 1}
    assert json.loads(command("export", run.id).stdout)["run"] == run.id


def test_purge_counts_first_and_then_removes(flow: Flow, command: Command) -> None:
    done, left = one.start(1), asks.start()
    flow.settle()
    counted = command("purge", "--older-than", "0s", "--dry-run")
    assert counted.stdout.startswith("would remove 1 run with 3 steps")
    assert len(flow.engine.list()) == 2
    assert "removed 1 run" in command("purge", "--older-than", "0s").stdout
    assert [run.id for run in flow.engine.list()] == [left.id]
    again = json.loads(command("purge", "--older-than", "0s", "--json").stdout)
    assert (again["runs"], again["dry_run"]) == (0, False)
    assert done.id not in {run.id for run in flow.engine.list()}


def test_doctor_finds_and_repairs(flow: Flow, command: Command) -> None:
    run = one.start(1)
    assert "invariants hold" in command("doctor").stdout
    with flow.database.write() as session:
        change = text("DELETE FROM flowengine_run WHERE id = :id")
        session.connection.execute(change, {"id": run.id})
    shown = command("doctor", code=1).stdout
    assert "✗ rows of step belong to a run  1 violations" in shown
    assert "--repair removes the rows" in shown
    assert json.loads(command("doctor", "--json", code=1).stdout)
    assert "repaired" in command("doctor", "--repair").stdout
    assert "invariants hold" in command("doctor").stdout


@workflow(name="operations.talks")
def talks(n: int) -> list[int]:
    return foreach(
        [n],
        lambda each: attempt(
            lambda: work.after(sleep(60))(wait_for("size", int, timeout=90)),
            catch=lambda error: 0,
        ),
    )


def test_history_shows_each_step_once_and_neither_blocks_nor_mailboxes(
    flow: Flow, command: Command
) -> None:
    run = talks.start(1)
    run.hold(reason="lunch", actor="ada")
    run.release(actor="token:ci")
    lines = command("history", run.id[:8]).stdout.splitlines()
    item = "talks.foreach[0].attempt"
    # Times are those of the computer's zone.
    assert [" ".join(line.partition("until")[0].split()) for line in lines] == [
        "0 ms 1 Started RUNNING",
        "… talks in progress",
        "… talks.foreach in progress",
        f"… {item} in progress",
        f"· {item}.work waits for others",
        f"☾ {item}.sleep",
        f"☾ {item}.wait_for",
        "0 ms 2 Action HELD",
        "hold by ada: lunch",
        "0 ms 3 Action RUNNING",
        "release by token:ci",
    ]
    flow.clock.advance(seconds=91)
    flow.watchdog()
    lines = command("history", run.id[:8], "--after", "3").stdout.splitlines()
    assert f"            ✓ {item}  complete" in lines  # its block has failed
    assert len(set(lines)) == len(lines)


def test_events_shows_changes_and_goes_on_behind_one(flow: Flow, command: Command) -> None:
    run = flow.start(one, 1)
    flow.settle()
    shown = command("events", run.id[:8]).stdout.splitlines()
    states = ["Created", "Dispatched", "Processing", "Completed"]
    assert [line.split()[-3] for line in shown] == states
    found = [json.loads(line) for line in command("events", run.id, "--json").stdout.splitlines()]
    assert [change["state"] for change in found] == [f"event.{state}" for state in states]
    last = str(found[2]["seq"])
    (rest,) = command("events", run.id, "--follow", "--after", last, "--json").stdout.splitlines()
    assert json.loads(rest) == found[3]
    failed = command("events", code=1)
    assert "FLOWENGINE_EVENT_FEED=on" in failed.stderr


@event_facet(name="operations.tells")
def tells(n: int) -> int:
    print("first", n)
    logging.getLogger("shop").warning("second \x1b[2J")
    print("third", file=sys.stderr)
    return n


@workflow(name="operations.told")
def told(n: int) -> int:
    return tells(n)


def test_logs_shows_what_steps_have_written(flow: Flow, command: Command) -> None:
    run = told.start(7)
    flow.settle()

    def shown(*options: str) -> list[str]:
        lines = command("logs", run.id[:8], *options).stdout.splitlines()
        return [line.partition(" ")[2] for line in lines]

    lines = ["tells stdout: first 7", "tells WARNING shop: second \\x1b[2J", "tells stderr: third"]
    assert shown() == shown("-f") == lines
    assert shown("--level", "warning") == lines[1:]
    assert shown("--grep", "fir") == shown("-n", "3", "--grep", "fir") == lines[:1]
    assert shown("-n", "1", "--step", "tells", "--try", "1", "--since", "1h") == lines[2:]
    assert shown("--since", "2999-01-01") == []
    refused = command("logs", run.id, "--step", "tell", code=2).stderr
    assert f"no step 'tell' of run {run.id[:8]} was begun; did you mean 'tells'" in refused
    first = json.loads(command("logs", run.id, "--json").stdout.splitlines()[0])
    assert (first["number"], first["path"], first["text"]) == (1, "told.tells", "first 7")
    assert "is neither an age" in command("logs", run.id, "--since", "soon", code=2).stderr
    assert "regular expression" in command("logs", run.id, "--grep", "(", code=1).stderr
    for since, code, problem in [
        ("9999999999d", 2, "is longer ago than times are known"),
        ("9" * 400 + "d", 2, "is longer ago than times are known"),
        ("0001-01-01", 1, "a time within the years"),
    ]:
        assert problem in command("logs", run.id, "--since", since, code=code).stderr
