"""Actions on many runs take every filter that a list takes, in Python and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from flowengine import Retry, attempt, event_facet, wait_for, workflow
from flowengine.cli import main
from flowengine.cli.run_filters import FILTERS
from flowengine.engine.run_filters import NAMES
from flowengine.errors import InvalidFilter
from flowengine.evaluator.actions import ActionKind
from flowengine.testing import Flow

ACTIONS = ("cancel", "hold", "release", "retry")


class DoesNotMatch(Exception):
    """An error of the facet below."""


@event_facet(name="bulk.work", retry=Retry(attempts=1))
def work(n: int) -> int:
    if n < 0:
        raise DoesNotMatch("negative")
    return n


@event_facet(name="bulk.refund", retry=Retry(attempts=1))
def refund(n: int) -> int:
    raise ValueError("no account")


@workflow(name="bulk.one")
def one(n: int) -> int:
    return work(n)


@workflow(name="bulk.refunds")
def refunds(n: int) -> int:
    return attempt(lambda: work(n), catch=lambda error: refund(n))


@workflow(name="bulk.asks")
def asks() -> int:
    return wait_for("size", int)


@workflow(name="bulk.asking")
def asking() -> int:
    return asks.start().result()


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flow]:
    url = f"sqlite:///{tmp_path}/flow.db"
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", url)
    with Flow(store_url=url) as flow:
        yield flow


def bulk(flow: Flow, action: str, **options: Any) -> Any:
    if action == "retry":
        return flow.engine.retry_all(**options)
    return flow.engine.act_on_all(ActionKind(action), **options)


def options_of(command: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for option in main.commands[command].params:
        if isinstance(option, click.Option):
            found[str(option.name)] = {*option.opts, *option.secondary_opts}
    return found


def test_each_filter_of_the_list_is_an_option_of_each_action() -> None:
    listed = options_of("list")
    only_of_lists = {"cursor", "limit", "as_json"}
    assert set(FILTERS) == set(listed) - only_of_lists
    # A program gives times instead of ages too, and a part of a workflow's name apart.
    times = {"created_after", "created_before", "finished_after", "finished_before"}
    assert {*FILTERS, *times, "named"} == NAMES
    for action in ACTIONS:
        own = options_of(action)
        assert {name: own.get(name) for name in FILTERS} == {name: listed[name] for name in FILTERS}


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_chooses_the_runs_that_a_list_with_its_filter_shows(
    flow: Flow, action: str
) -> None:
    tagged = asks.options(labels={"team": "a"}, key="k", tenant="shop").start()
    parent = asking.start()
    failed = [one.start(-1), refunds.start(-1)]
    flow.settle()
    assert {run.state for run in failed} == {"FAILED"}
    middle = flow.clock.now
    flow.clock.advance(hours=2)
    asks.start()
    worker = flow.worker("one")
    held = one.start(1)
    worker.claim(held, "work")
    values: dict[str, Any] = {
        "workflow": "asks",
        "named": "bulk.a",
        "state": ["RUNNING", "FAILED"],
        "label": {"team": "a"},
        "key": "k",
        "id_prefix": tagged.id[:6],
        "created_after": middle,
        "created_before": middle + 1,
        "finished_after": 0,
        "finished_before": middle + 1,
        "newer_than": timedelta(hours=1),
        "older_than": 3600,
        "error_type": "DoesNotMatch",
        "server": "one",
        "alarm": False,
        "parent": parent.id,
        "waits_for": "answer",
        "tenant": "shop",
        "agents": True,
    }
    assert values.keys() == NAMES
    states = ["RUNNING", "FAILED"]
    for name, value in values.items():
        filters = {"state": states, name: value}
        listed = [run.id for run in flow.engine.list(**filters)]
        assert listed or name == "agents", name
        result = bulk(flow, action, dry_run=True, **filters)
        assert result.matched == len(listed), name
        found = {*result.refusals, *(info.id for info in result.first)}
        assert found == set(listed), name


def test_an_unknown_filter_is_refused_and_not_ignored(flow: Flow) -> None:
    asks.start()
    with pytest.raises(InvalidFilter, match="stat"):
        flow.engine.cancel_all(stat="RUNNING")  # type: ignore[call-arg]
    assert flow.engine.list()[0].state == "RUNNING"


def test_runs_with_a_cause_are_retried_after_a_dry_run_that_shows_them(flow: Flow) -> None:
    failed = [refunds.start(-1) for _ in range(12)]
    other = one.start(1)
    flow.settle()
    words = ["retry", "--error", "DoesNotMatch", "--since", "5000w"]
    dry = CliRunner().invoke(main, [*words, "--dry-run"], env={"COLUMNS": "200"})
    assert dry.exit_code == 0, dry.output
    assert dry.output.startswith("12 runs match; a dry run changes nothing\n")
    shown = [line for line in dry.output.splitlines() if "bulk.refunds" in line]
    assert len(shown) == 10
    assert "DoesNotMatch" in shown[0]
    assert dry.output.endswith("… and 2 more\n")
    assert {run.state for run in failed} == {"FAILED"}
    answer = json.loads(CliRunner().invoke(main, [*words, "--dry-run", "--json"]).output)
    assert (answer["matched"], answer["applied"], len(answer["first"])) == (12, 0, 10)
    nobody = CliRunner().invoke(main, ["retry", "--error", "ValueErro", "--dry-run"])
    assert nobody.output == "0 runs match; a dry run changes nothing\n"
    done = CliRunner().invoke(main, words)
    assert done.output == "12 of 12 runs retried\n"
    assert {run.state for run in failed} == {"RUNNING"}
    assert other.state == "COMPLETED"


def test_runs_are_acted_on_oldest_first(flow: Flow) -> None:
    started = []
    for _ in range(3):
        started.append(asks.start().id)
        flow.clock.advance(seconds=1)
    result = flow.engine.hold_all(dry_run=True)
    assert [info.id for info in result.first] == started


@pytest.mark.parametrize("action", [*ACTIONS, "purge"])
@pytest.mark.parametrize("option", ["--workflow", "--id", "--key", "--error"])
def test_an_empty_filter_is_refused_and_not_taken_for_all_runs(
    flow: Flow, action: str, option: str
) -> None:
    # As of a script that has not set its variable: flowengine cancel --workflow "$NAME".
    run = asks.start()
    needed = ["--older-than", "0s"] if action == "purge" else []
    result = CliRunner().invoke(main, [action, *needed, option, ""])
    assert result.exit_code == 2, result.output
    assert f"{option} is empty" in " ".join(result.stderr.split())
    assert run.state == "RUNNING"


@pytest.mark.parametrize(
    "empty", [{"workflow": ""}, {"workflow": []}, {"named": ""}, {"id_prefix": ""}, {"state": []}]
)
def test_an_empty_filter_of_a_program_is_refused(flow: Flow, empty: dict[str, Any]) -> None:
    run = asks.start()
    for action in ACTIONS:
        with pytest.raises(InvalidFilter, match="leave it out for any"):
            bulk(flow, action, **empty)
    with pytest.raises(InvalidFilter, match="leave it out for any"):
        flow.engine.purge(older_than=0, **empty)
    assert run.state == "RUNNING"


def test_a_purge_takes_the_filters_of_the_list_that_ended_runs_can_have() -> None:
    listed, own = options_of("list"), options_of("purge")
    # The age is that of the end; an ended run waits for nothing, and has neither a server nor an
    # alarm; child runs are removed with their root.
    not_of_ended = {"older_than", "server", "alarm", "parent", "waits_for"}
    wanted = {name: listed[name] for name in FILTERS if name not in not_of_ended}
    assert {name: own.get(name) for name in wanted} == wanted
    assert not {"server", "alarm", "parent", "waits_for"} & set(own)


def test_a_purge_removes_the_runs_that_a_list_with_its_filter_shows(flow: Flow) -> None:
    parts = [
        one.options(labels={"team": "a"}, key="k", tenant="shop").start(1),
        one.start(-1),
        refunds.start(-1),
        one.start(2),
    ]
    flow.settle()
    flow.clock.advance(hours=2)
    later = one.start(3)
    flow.settle()
    open_run = asks.options(labels={"team": "a"}).start()
    flow.clock.advance(seconds=1)
    chosen: list[tuple[dict[str, Any], list[Any]]] = [
        ({"label": {"team": "a"}, "state": "FAILED"}, []),
        ({"label": {"team": "a"}}, [parts[0]]),
        ({"error_type": "ValueError"}, [parts[2]]),
        ({"error_type": "DoesNotMatch", "workflow": "one"}, [parts[1]]),
        ({"newer_than": 3600}, [later]),
        ({"id_prefix": parts[3].id[:12]}, [parts[3]]),
    ]
    for filters, runs in chosen:
        shown = {run.id for run in flow.engine.list(**filters) if run.is_final}
        assert shown == {run.id for run in runs}
        assert flow.engine.purge(older_than=0, dry_run=True, **filters).runs == len(runs)
        assert flow.engine.purge(older_than=0, **filters).runs == len(runs)
        assert [run.id for run in flow.engine.list(**filters) if run.is_final] == []
    assert [run.id for run in flow.engine.list()] == [open_run.id]


def test_a_purge_with_a_filter_removes_roots_with_their_child_runs_and_no_child_alone(
    flow: Flow,
) -> None:
    parent = asking.start()
    flow.settle()
    (child,) = flow.engine.list(parent=parent.id)
    flow.engine.send(child.id, "size", 3)
    flow.settle()
    flow.clock.advance(seconds=1)
    assert flow.engine.purge(older_than=0, workflow="asks").runs == 0
    assert flow.engine.purge(older_than=0, workflow="asking", dry_run=True).runs == 1
    assert flow.engine.purge(older_than=0, workflow="asking").runs == 2
    assert flow.engine.list() == []


def test_a_purge_with_a_filter_looks_at_more_runs_than_a_page_has(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("PAGE", 3), ("_SCANNED", 4)):
        monkeypatch.setattr(f"flowengine.engine.run_pages.{name}", number)
    for n in range(12):
        one.start(-(n % 2))
    flow.settle()
    flow.clock.advance(seconds=1)
    done = flow.engine.purge(older_than=0, error_type="DoesNotMatch")
    assert (done.runs, done.is_complete) == (6, True)
    assert len(flow.engine.list()) == 6


def test_a_purge_refuses_filters_that_no_ended_run_has(flow: Flow) -> None:
    for filters in ({"server": "io"}, {"waits_for": "time"}, {"parent": "a"}, {"alarm": True}):
        given: dict[str, Any] = dict(filters)
        with pytest.raises(InvalidFilter):
            flow.engine.purge(older_than=0, **given)


def test_an_empty_list_of_several_filters_does_not_deny_the_runs_of_the_workflow(
    flow: Flow,
) -> None:
    asks.start()
    result = CliRunner().invoke(main, ["list", "--workflow", "asks", "--state", "failed"])
    assert result.stdout == "no runs with 'asks' in the name of their workflow match all filters\n"


def test_an_empty_page_with_more_behind_it_says_so_in_a_pipe_too(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        asks.start()
    monkeypatch.setattr("flowengine.engine.run_pages._SCANNED", 2)
    words = ["list", "--workflow", "asks", "--state", "failed", "--limit", "1"]
    result = CliRunner().invoke(main, words)
    assert result.stdout.startswith("… more with --cursor ")
