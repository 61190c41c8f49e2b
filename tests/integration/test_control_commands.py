"""`flowengine cancel`, `hold` and `release`, and how `list` and `show` show the states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from flowengine import attempt, event_facet, workflow
from flowengine.cli import main
from flowengine.cli.run_filters import STATES
from flowengine.evaluator.states import RunState
from flowengine.store.tables import FactRow
from flowengine.testing import Flow

Command = Callable[..., Result]


@event_facet(name="commands.work")
def work(n: int) -> int:
    return n


@workflow(name="commands.plain")
def plain(n: int) -> int:
    return work(n)


@workflow(name="commands.closing")
def closing(n: int) -> int:
    return attempt(lambda: work(n), always=lambda: work(0))


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/flow.db"
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", url)
    monkeypatch.chdir(tmp_path)
    return url


@pytest.fixture
def command(url: str) -> Command:
    def run(*words: str, expect: int = 0) -> Result:
        result = CliRunner().invoke(main, words)
        assert result.exit_code == expect, result.output
        return result

    return run


def started(url: str, *flows: object) -> list[str]:
    with Flow(store_url=url) as flow:
        return [flow.start(each, 1).id for each in flows]  # type: ignore[arg-type]


def test_the_choices_are_the_states_of_runs() -> None:
    assert STATES == RunState.ALL


def test_a_run_is_held_released_and_cancelled_by_its_prefix(url: str, command: Command) -> None:
    (run,) = started(url, plain)
    assert command("hold", run[:8]).output == f"run {run[:8]} is HELD\n"
    assert "HELD" in command("list").output
    assert "held" in command("show", run[:8]).output
    assert command("release", run[:8]).output == f"run {run[:8]} is RUNNING\n"
    words = ("cancel", run[:8], "--reason", "duplicate", "--actor", "token:ci")
    assert command(*words).output == f"run {run[:8]} is CANCELLED\n"
    assert "cancelled by token:ci: duplicate" in command("list", "--state", "cancelled").output
    shown = command("show", run[:8]).output
    assert "⊗ plain  cancelled" in shown
    assert "⊗ work  cancelled" in shown


def test_the_actor_is_the_user_of_the_computer_by_default(
    url: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    (run,) = started(url, plain)
    command("hold", run)
    with Flow(store_url=url) as flow, flow.database.read() as session:
        (fact,) = session.connection.execute(FactRow.__table__.select())
    assert fact.actor == "person:ada"


def test_an_ended_run_refuses_with_a_reason_and_the_exit_code_one(
    url: str, command: Command
) -> None:
    run, other = started(url, plain, plain)
    with Flow(store_url=url) as flow:
        flow.engine.cancel(other)
        flow.settle()
    output = command("cancel", run, other, expect=1).output
    assert f"run {other[:8]} is CANCELLED\n" in output
    reason = "the run is COMPLETED: it has ended, so nothing is left to cancel"
    assert f"run {run[:8]} refuses cancel: {reason}\n" in output
    dry = json.loads(command("cancel", run, "--dry-run", "--json", expect=1).output)
    assert dry == {
        "action": "cancel",
        "dry_run": True,
        "matched": 1,
        "applied": 0,
        "refused": 1,
        "refusals": {run: reason},
        "states": {run: "COMPLETED"},
    }


def test_a_filter_is_counted_first(url: str, command: Command) -> None:
    started(url, plain, plain, closing)
    words = ("cancel", "--workflow", "plain", "--older-than", "1d")  # the clock of Flow is old
    assert command(*words, "--dry-run").output.startswith(
        "2 runs match; a dry run changes nothing\n"
    )
    assert command(*words).output == "2 of 2 runs cancelled\n"
    done = json.loads(command("cancel", "--all", "--json").output)
    assert done == {
        "action": "cancel",
        "dry_run": False,
        "matched": 1,
        "applied": 1,
        "refused": 0,
        "refusals": {},
    }
    assert "CANCELLING" in command("list", "--state", "CANCELLING").output
    assert command("hold", "--all").output == "0 of 0 runs held\n"


def test_a_dry_run_counts_only_the_runs_that_would_take_the_action(
    url: str, command: Command
) -> None:
    held, other = started(url, plain, plain)
    command("hold", held)
    command("cancel", other)
    refused = command("release", "--state", "CANCELLED", "--dry-run", expect=1).output
    assert refused.startswith(f"run {other[:8]} refuses release: ")
    assert refused.endswith("\n0 runs match; a dry run changes nothing\n")
    words = ("release", "--workflow", "plain", "--dry-run", "--json")
    counted = json.loads(command(*words, "--state", "HELD").output)
    assert (counted["matched"], counted["applied"], counted["refused"]) == (1, 0, 0)
    assert "HELD" in command("show", held).output, "nothing was changed"


def test_a_misspelt_kind_of_actor_is_refused(url: str, command: Command) -> None:
    (run,) = started(url, plain)
    shown = command("hold", run, "--actor", "tokn:ci", expect=1).output
    assert "the kinds are person, token, schedule and server; write 'token:ci'" in shown
    assert "RUNNING" in command("show", run).output


def test_the_history_says_that_there_is_no_commit_behind_a_number(
    url: str, command: Command
) -> None:
    (run,) = started(url, plain)
    last = json.loads(command("history", run, "--json").output)[-1]["revision"]
    shown = command("history", run, "--after", "99").output
    assert shown == f"run {run[:8]} has no commit behind 99: its last one is {last}\n"
    assert json.loads(command("history", run, "--after", "99", "--json").output) == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["cancel"], "name a run, or a filter like --workflow, or --all"),
        (["hold", "abc", "--all"], "by their ids or by a filter, not both"),
        (["cancel", "--older-than", "soon"], "is no age: it must be a number with a unit"),
        (["cancel", "--older-than", "9" * 30 + "w"], "longer than a database has existed"),
        (["release", "--label", "team"], "write NAME=VALUE"),
        (["cancel", "--state", "DONE"], "'DONE' is not one of"),
    ],
)
def test_a_wrong_call_is_explained(command: Command, words: list[str], problem: str) -> None:
    assert problem in command(*words, expect=click.UsageError.exit_code).output


def test_an_unknown_run_stops_before_the_first_is_changed(url: str, command: Command) -> None:
    (run,) = started(url, plain)
    command("cancel", run, "ffff", expect=1)
    with Flow(store_url=url) as flow:
        assert flow.engine.get(run).state == RunState.RUNNING
