"""`flowengine retry`, `fork`, `skip`, `complete` and `diff`, as a person types them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from flowengine import event_facet, workflow
from flowengine.cli import main
from flowengine.engine import Run
from flowengine.evaluator.states import RunState
from flowengine.testing import Flow
from tests.registries import empty_registry

Command = Callable[..., Result]
broken: set[str] = set()


@event_facet(name="again.charge")
def charge(customer: str) -> int:
    if "charge" in broken:
        raise ValueError("the bank is closed")
    return 100


@event_facet(name="again.ship")
def ship(amount: int) -> str:
    if "ship" in broken:
        raise ValueError("the depot is closed")
    return f"shipped for {amount}"


@workflow(name="again.order")
def order(customer: str) -> str:
    return ship(charge(customer))


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flow]:
    broken.clear()
    url = f"sqlite:///{tmp_path}/flow.db"
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", url)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    with Flow(store_url=url) as flow:
        yield flow


@pytest.fixture
def command() -> Command:
    def run(*words: str, expect: int = 0) -> Result:
        result = CliRunner().invoke(main, words)
        assert result.exit_code == expect, result.output
        return result

    return run


def settle(flow: Flow) -> None:
    """Let workers do what is due by the clock of the commands, which is later than Flow's."""
    flow.clock.advance(hours=24 * 365 * 100)
    flow.settle()


def started(flow: Flow, *customers: str, fails: str = "") -> list[Run[Any]]:
    broken.add(fails)
    runs = [flow.start(order, customer) for customer in customers]
    flow.settle()
    broken.clear()
    return runs


# --- retry ---


def test_a_failed_run_is_retried_after_a_dry_run(flow: Flow, command: Command) -> None:
    (run,) = started(flow, "eva", fails="ship")
    short = run.id[:8]
    dry = command("retry", short, "--dry-run").output
    again = "1 step would run again; a dry run changes nothing"
    assert dry == f"run {short}: {again}\n  order.ship\n"
    assert run.state == RunState.FAILED
    words = ("retry", short, "--reason", "the depot is open", "--actor", "token:ci")
    assert command(*words).output == f"run {short} is RUNNING: 1 step runs again\n"
    settle(flow)
    assert run.result(timeout=0) == "shipped for 100"
    assert "retry by token:ci: the depot is open" in command("history", short).output


def test_runs_that_refuse_a_retry_are_listed_beside_the_others(
    flow: Flow, command: Command
) -> None:
    (failed,) = started(flow, "eva", fails="ship")
    (done,) = started(flow, "ada")
    output = command("retry", failed.id, done.id, expect=1).output
    assert f"run {failed.id[:8]} is RUNNING: 1 step runs again\n" in output
    assert f"run {done.id[:8]} refuses retry: the run has completed" in output
    (shown,) = json.loads(command("retry", done.id, "--dry-run", "--json", expect=1).output)
    assert shown.pop("refused").startswith("the run has completed")
    assert shown == {"run": done.id, "dry_run": True, "steps": [], "state": "COMPLETED"}


def test_a_retry_from_a_step_names_the_steps(flow: Flow, command: Command) -> None:
    (run,) = started(flow, "eva")
    words = ("retry", run.id, "--from-step", "order.charge")
    (shown,) = json.loads(command(*words, "--json").output)
    steps = ["order.charge", "order.ship"]
    assert shown == {"run": run.id, "dry_run": False, "steps": steps, "state": "RUNNING"}
    settle(flow)
    output = command("retry", run.id, "--from-step", "order.shp", expect=1).output
    assert "no step 'order.shp'; did you mean 'order.ship'" in output


def test_failed_runs_are_retried_by_a_filter(flow: Flow, command: Command) -> None:
    failed = started(flow, "eva", "ada", fails="ship")
    (done,) = started(flow, "bob")
    words = ("retry", "--state", "failed", "--workflow", "order")
    assert command(*words, "--dry-run").output.startswith(
        "2 runs match; a dry run changes nothing\n"
    )
    assert command(*words).output == "2 of 2 runs retried\n"
    settle(flow)
    assert {run.state for run in failed} == {RunState.COMPLETED}
    shown = json.loads(command("retry", "--all", "--json").output)
    assert shown == {
        "action": "retry",
        "dry_run": False,
        "matched": 0,
        "applied": 0,
        "refused": 0,
        "refusals": {},
    }
    words = ("retry", "--state", "completed", "--from-step", "order.mail")
    counted = command(*words, "--dry-run", expect=1).output
    assert counted.endswith("\n0 runs match; a dry run changes nothing\n")
    refused = json.loads(command(*words, "--json", expect=1).output)
    assert (refused["matched"], refused["refused"]) == (3, 3)
    assert "no step 'order.mail'" in refused["refusals"][done.id]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["retry"], "name a run, or a filter like --workflow, or --all"),
        (["retry", "abc", "--all"], "by their ids or by a filter, not both"),
        (["fork"], "Missing argument 'RUN'"),
        (["fork", "abc", "-i", "amount"], "write NAME=VALUE"),
        (["skip", "abc"], "Missing argument 'STEP'"),
        (["complete", "abc"], "Missing argument 'STEP'"),
        (["diff"], "Missing argument 'MODULE...'"),
    ],
)
def test_a_wrong_call_is_explained(
    flow: Flow, command: Command, words: list[str], problem: str
) -> None:
    assert problem in command(*words, expect=click.UsageError.exit_code).output


@pytest.mark.parametrize(
    "words", [["retry", "ffff"], ["fork", "ffff"], ["skip", "ffff", "s"], ["complete", "ffff", "s"]]
)
def test_an_unknown_run_is_an_error(flow: Flow, command: Command, words: list[str]) -> None:
    assert "there is no run 'ffff'" in command(*words, expect=1).output


# --- fork ---


def test_a_run_is_forked_after_a_dry_run(flow: Flow, command: Command) -> None:
    (run,) = started(flow, "eva")
    words = ("fork", run.id[:8], "--from-step", "order.ship")
    dry = command(*words, "--dry-run").output
    would = "1 step would run in a fork; a dry run changes nothing"
    assert dry == f"run {run.id[:8]}: {would}\n  order.ship\n"
    assert len(flow.engine.list()) == 1
    shown = json.loads(command(*words, "--key", "ticket 7", "--json").output)
    assert shown == {"run": shown["run"], "forked_from": run.id, "state": "RUNNING"}
    output = command(*words, "--key", "ticket 7").output  # the same fork
    assert output == f"run {shown['run']} is a fork of {run.id[:8]}, and is RUNNING\n"
    settle(flow)
    assert flow.engine.run(shown["run"]).result(timeout=0) == "shipped for 100"


def test_a_fork_takes_other_inputs(flow: Flow, command: Command) -> None:
    (run,) = started(flow, "eva")
    words = ("fork", run.id, "-i", "customer=ada", "--json")
    dry = json.loads(command(*words, "--dry-run").output)
    assert dry == [
        {"run": run.id, "state": "COMPLETED", "steps": ["order.charge", "order.ship"]}
        | {"dry_run": True}
    ]
    new = flow.engine.run(json.loads(command(*words).output)["run"])
    assert {"customer": "ada"} in [step.params for step in new.steps()]
    for more in ([], ["--dry-run"]):
        words = ("fork", run.id, "-i", "custmer=ada", *more)
        assert "did you mean 'customer'" in command(*words, expect=1).output
        refused = command("fork", run.id, *more, expect=1).output
        assert "the run has completed: name the step" in " ".join(refused.split())


# --- by hand ---


def test_a_failed_step_is_completed_after_a_dry_run(flow: Flow, command: Command) -> None:
    (run,) = started(flow, "eva", fails="charge")
    words = ("complete", run.id[:8], "order.charge", "42", "--reason", "cash")
    dry = command(*words, "--dry-run").output
    assert dry == "order.charge would be completed; a dry run changes nothing\n"
    assert run.state == RunState.FAILED
    assert command(*words).output == f"order.charge is completed; run {run.id[:8]} is RUNNING\n"
    settle(flow)
    assert run.result(timeout=0) == "shipped for 42"
    for more in ([], ["--dry-run"]):
        refused = command("complete", run.id, "order.charge", "1", *more, expect=1).output
        assert "the run is COMPLETED: it has ended" in " ".join(refused.split())
    misfit = command("complete", run.id, "order.charge", '"much"', "--dry-run", expect=1).output
    assert "does not fit" in misfit


def test_a_step_is_skipped_after_a_dry_run(flow: Flow, command: Command) -> None:
    run = flow.start(order, "eva")
    words = ("skip", run.id, "order.charge", "--json")
    about = {"run": run.id, "step": "order.charge", "ended": "skipped"}
    dry = json.loads(command(*words, "--dry-run").output)
    assert dry == {**about, "state": "RUNNING", "dry_run": True}
    done = json.loads(command(*words).output)
    assert done == {**about, "state": "FAILED", "dry_run": False}
    refused = command("skip", run.id, "order.charg", "--dry-run", expect=1).output
    assert "no step 'order.charg'; did you mean 'order.charge'" in " ".join(refused.split())


# --- versions ---


_SHOP = """
from flowengine import event_facet, workflow


@event_facet(name="versions_shop.charge")
def charge(customer: str{more}) -> int:
    return 100


@workflow(name="versions_shop.order")
def order(customer: str) -> int:
    return charge(customer{given})
"""


@pytest.fixture
def alone() -> Iterator[None]:
    """Only the workflows of the command: other tests define some that cannot be traced."""
    with empty_registry():
        yield
    sys.modules.pop("versions_shop", None)


@pytest.mark.usefixtures("alone")
def test_diff_tells_which_runs_differ_from_the_code(
    flow: Flow, command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "versions_shop.py"
    file.write_text(_SHOP.format(more="", given=""))
    assert command("diff", str(file)).output == "no run is unfinished\n"
    started = command("run", f"{file}:order", "-i", "customer=eva", "--no-wait").output.strip()
    same = json.loads(command("diff", str(file), "--json").output)
    assert [(each["runs"], each["breaks"]) for each in same] == [(1, False)]
    file.write_text(_SHOP.format(more=", amount: int", given=", 7"))
    sys.modules.pop("versions_shop", None)  # another process would load the new code
    broken = command("diff", str(file), expect=1).output
    assert "versions_shop.order 1 unfinished run" in broken
    assert "versions_shop.charge" in broken
    (shown,) = json.loads(command("diff", str(file), "--json", expect=1).output)
    assert (shown["workflow"], shown["runs"], shown["breaks"]) == ("versions_shop.order", 1, True)
    assert json.loads(command("diff", str(file), "--workflow", "other.flow", "--json").output) == []
    words = ("retry", started, "--from-step", "order.charge", "--program", f"{file}:order")
    assert command(*words).output == f"run {started[:8]} is RUNNING: 1 step runs again\n"
    assert "as today's code" in command("diff", str(file)).output
