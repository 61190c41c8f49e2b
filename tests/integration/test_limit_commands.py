"""Limits and rates for people: holders, waiting tasks, overrides that are kept, and resets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowengine import Limit, Rate, event_facet, workflow
from flowengine.cli import main
from flowengine.errors import ValueRefused
from flowengine.testing import Flow

pytestmark = pytest.mark.each_database


@event_facet(name="held.work", limit=Limit("customer:{n}", 2))
def work(n: int) -> int:
    return n


@workflow(name="held.one")
def one(n: int) -> int:
    return work(n)


@event_facet(name="held.mail", rate=Rate("mailgun", 2, per=60))
def mail(n: int) -> int:
    return n


@workflow(name="held.mails")
def mails(n: int) -> int:
    return mail(n)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def counts(info: Any) -> tuple[int, int, int]:
    return info.number, info.used, info.waiting


def test_a_limit_is_shown_with_its_holders_and_those_that_wait(flow: Flow) -> None:
    first, second, _ = (one.start(7) for _ in range(3))
    flow.worker("io").claim(first, "work")
    (info,) = flow.engine.limits.list()
    assert (info.key, counts(info), info.set_by) == ("customer:7", (2, 2, 1), None)
    holders = flow.engine.limits.get("customer:7").holders
    assert {(each.run, each.state, each.server) for each in holders} == {
        (first.id, "running", "io"),
        (second.id, "pending", None),
    }
    assert flow.engine.rates.list() == []


def test_a_limit_that_is_raised_admits_at_once_and_one_that_is_lowered_stops_nothing(
    flow: Flow,
) -> None:
    for _ in range(5):
        one.start(7)
    raised = flow.engine.limits.set("customer:7", 4, actor="eva", reason="they paid")
    assert counts(raised) == (4, 4, 1)
    assert (raised.code_number, raised.set_by, raised.set_reason) == (2, "person:eva", "they paid")
    lowered = flow.engine.limits.set("customer:7", 1, actor="eva")
    assert counts(lowered) == (1, 4, 1), "what is admitted stays so"
    flow.settle()
    assert counts(flow.engine.limits.get("customer:7")) == (1, 0, 0)


def test_an_override_stays_whatever_later_runs_state_until_it_is_reset(flow: Flow) -> None:
    one.start(7)
    flow.engine.limits.set("customer:7", 1, actor="eva")
    flow.settle()
    flow.clock.advance(hours=24 * 60)
    flow.engine.purge(older_than=timedelta(days=1))
    for _ in range(3):
        one.start(7)
    assert counts(flow.engine.limits.get("customer:7")) == (1, 1, 2)
    reset = flow.engine.limits.reset("customer:7", actor="ada")
    assert counts(reset) == (2, 2, 1)
    assert (reset.set_by, reset.set_at) == (None, None)
    assert {(each.action, each.actor, each.subject) for each in flow.engine.actions()} == {
        ("reset limit", "person:ada", "customer:7"),
        ("set limit", "person:eva", "customer:7"),
    }


def test_a_number_of_zero_holds_all_tasks_of_a_key(flow: Flow) -> None:
    one.start(7)
    flow.settle()
    flow.engine.limits.set("customer:7", 0)
    stopped = one.start(7)
    flow.settle()
    assert stopped.state == "RUNNING"
    assert [each.key for each in flow.engine.limits.list(waiting=True)] == ["customer:7"]
    flow.engine.limits.reset("customer:7")
    flow.settle()
    assert stopped.result(timeout=0) == 7


def test_a_rate_is_overridden_with_its_period(flow: Flow) -> None:
    for _ in range(4):
        mails.start(1)
    flow.settle()
    info = flow.engine.rates.get("mailgun")
    assert (counts(info), info.per) == ((2, 2, 2), 60.0)
    assert info.next_free is not None
    changed = flow.engine.rates.set("mailgun", 3, per=10, actor="eva")
    assert (counts(changed), changed.per, changed.code_per) == ((3, 3, 1), 10.0, 60.0)
    flow.engine.rates.set("mailgun", 4)
    flow.settle()
    assert flow.engine.rates.get("mailgun").waiting == 0
    reset = flow.engine.rates.reset("mailgun")
    assert (reset.number, reset.per) == (2, 60.0)


def test_a_wrong_override_is_refused_with_the_nearest_key(flow: Flow) -> None:
    one.start(7)
    with pytest.raises(ValueRefused, match="did you mean 'customer:7'"):
        flow.engine.limits.set("custmer:7", 1)
    with pytest.raises(ValueRefused, match="-1 is no number of a limit"):
        flow.engine.limits.set("customer:7", -1)
    with pytest.raises(ValueRefused, match="a limit has no period"):
        flow.engine.limits.set("customer:7", 1, per=3)


def test_keys_come_in_pages(flow: Flow) -> None:
    for number in range(5):
        one.start(number)
    page = flow.engine.limits.list(limit=3)
    rest = flow.engine.limits.list(limit=3, cursor=page.cursor)
    assert [each.key for each in (*page, *rest)] == [f"customer:{n}" for n in range(5)]
    assert (len(page), rest.cursor) == (3, None)


def test_the_commands_show_set_and_reset_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/flow.db"
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", url)
    with Flow(store_url=url):
        runs = [one.start(7) for _ in range(3)]
        mails.start(1)

    def run(*words: str, expect: int = 0) -> str:
        result = CliRunner().invoke(main, words, env={"COLUMNS": "200"})
        assert result.exit_code == expect, result.output
        return result.output

    assert run("limits").splitlines()[1].split() == ["customer:7", "2", "2", "1"]
    shown = run("limits", "show", "customer:7")
    assert runs[0].id[:8] in shown
    assert "one.work" in shown
    words = ("--actor", "eva", "--reason", "they paid")
    changed = run("limits", "set", "customer:7", "3", *words)
    assert changed.splitlines()[1].split()[:6] == ["customer:7", "3", "3", "0", "2", "person:eva"]
    (listed,) = json.loads(run("limits", "list", "--overridden", "--json"))
    assert (listed["number"], listed["code_number"], listed["set_reason"]) == (3, 2, "they paid")
    assert "person:eva" not in run("limits", "reset", "customer:7")
    assert "2 per 60 s" in run("rates")
    assert "5 per 10 s" in run("rates", "set", "mailgun", "5", "--per", "10")
    assert "did you mean 'customer:7'" in run("limits", "show", "customer:8x", expect=1)
    run("limits", "set", "customer:7", "-1", expect=2)
    assert "set limit" in run("actions")
