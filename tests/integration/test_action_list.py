"""The log of actions: those on all runs and operations, filtered and paged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from flowengine import Retry, event_facet, wait_for, workflow
from flowengine.cli import main
from flowengine.errors import ActionRefused, InvalidFilter
from flowengine.testing import Flow
from tests.integration.test_tenants import _plan, statements_of


@event_facet(name="acted.work", retry=Retry(attempts=1))
def work(n: int) -> int:
    return 1 // n


@workflow(name="acted.one")
def one(n: int) -> int:
    return work(n)


@workflow(name="acted.asks")
def asks() -> int:
    return wait_for("size", int)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


@pytest.mark.each_database
def test_actions_of_all_runs_are_listed_newest_first_and_filtered(flow: Flow) -> None:
    failed, held = one.start(0), asks.options(tenant="shop").start()
    flow.settle()
    held.hold(actor="eva", reason="price")
    flow.clock.advance(hours=2)
    failed.retry(actor="token:ci", reason="deployed")
    flow.clock.advance(seconds=1)
    held.release(actor="ada")
    flow.clock.advance(seconds=1)
    fork = failed.fork(actor="eva", reason="look")
    flow.clock.advance(seconds=1)
    flow.engine.cancel_all(workflow="acted.asks", actor="schedule:tidy", reason="old")
    with pytest.raises(ActionRefused):
        held.hold(actor="eva")

    def found(**filters: Any) -> list[tuple[str, str]]:
        return [(each.actor, each.action) for each in flow.engine.actions(**filters)]

    by_eva = [("person:eva", "fork"), ("person:eva", "hold")]
    assert found() == [
        *(("schedule:tidy", "cancel"), by_eva[0], ("person:ada", "release")),
        *(("token:ci", "retry"), by_eva[1]),
    ]
    assert found(actor="eva") == found(actor="person:eva") == by_eva
    assert found(action="hold") == by_eva[1:]
    assert found(action=["hold", "fork"]) == by_eva
    assert found(workflow="one") == [by_eva[0], ("token:ci", "retry")]
    assert found(tenant="shop", actor="ada") == [("person:ada", "release")]
    assert found(tenant="other") == []
    assert found(newer_than=timedelta(hours=1)) == found()[:-1]
    assert found(older_than=3600) == by_eva[1:]
    entry = flow.engine.actions(action="fork")[0]
    assert (entry.run, entry.workflow, entry.reason) == (failed.id, "acted.one", "look")
    assert entry.options["fork"] == fork.id
    pages, page = [], flow.engine.actions(limit=2)
    while page.cursor is not None:
        pages += list(page)
        page = flow.engine.actions(limit=2, cursor=page.cursor)
    assert [*pages, *page] == list(flow.engine.actions())
    with pytest.raises(InvalidFilter, match="cursor"):
        flow.engine.actions(cursor="x")
    assert flow.engine.doctor(older_than=timedelta()) == []


@pytest.mark.each_database
def test_the_list_reads_actions_alone_by_their_index(flow: Flow) -> None:
    run = asks.start()
    run.hold(actor="eva")
    with statements_of(flow.engine) as statements:
        assert len(flow.engine.actions()) == 1
    (listing,) = [each for each in statements if "flowengine_fact" in each[0]]
    if not flow.engine.database.has_server:  # few rows: PostgreSQL reads them all
        assert "flowengine_fact_action" in _plan(flow.engine, *listing)


def test_operations_are_listed_without_a_run(flow: Flow) -> None:
    flow.worker("one")
    flow.engine.workers.set_limits("one", tasks=3, actor="eva", reason="slow disk")
    (entry,) = flow.engine.actions()
    assert (entry.action, entry.subject, entry.run) == ("limit", "one", "")
    assert (entry.actor, entry.reason, entry.options["tasks"]) == ("person:eva", "slow disk", 3)
    assert flow.engine.doctor(older_than=timedelta()) == []


def test_the_command_shows_who_did_what_and_why(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/flow.db"
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", url)
    with Flow(store_url=url):
        run = asks.start()
    hold = CliRunner().invoke(main, ["hold", run.id, "--reason", "price", "--actor", "eva"])
    assert hold.exit_code == 0, hold.output

    def shown(*words: str) -> str:
        result = CliRunner().invoke(main, ["actions", *words], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        return result.output

    line = shown().splitlines()[1].split()
    assert line[-5:] == ["person:eva", "hold", run.id[:8], "acted.asks", "price"]
    (entry,) = json.loads(shown("--since", "5000w", "--actor", "eva", "--json"))
    assert (entry["run"], entry["action"], entry["reason"]) == (run.id, "hold", "price")
    assert shown("--actor", "bob") == "no actions\n"
