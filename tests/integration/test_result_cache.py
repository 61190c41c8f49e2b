"""The result cache: a step completes with an earlier result of its key, without a try."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from flowengine import Cache, Secret, event_facet, foreach, workflow
from flowengine.assembly import EngineLauncher
from flowengine.authoring.launcher_slot import StartOptions
from flowengine.engine import Run, purger
from flowengine.evaluator.triggers import Report, Succeeded
from flowengine.settings import Settings
from flowengine.testing import Flow, replay

CALLS: list[Any] = []


@event_facet(name="cached.rate", cache=Cache("rates:{currency}", timedelta(hours=1)))
def rate(currency: str) -> int:
    CALLS.append(currency)
    return len(CALLS)


@event_facet(name="cached.text", cache=Cache("text:{n}", 3600))
def large(n: int) -> str:
    CALLS.append(n)
    return "x" * n


@event_facet(name="cached.pair", cache=Cache("pair:{a}:{b}", 3600))
def pair(a: str | None, b: str) -> str:
    return f"{a!r} and {b!r}"


@event_facet(name="cached.size")
def size(text: str) -> int:
    return len(text)


@event_facet(name="cached.token", cache=Cache("token", 3600))
def token() -> Secret:
    CALLS.append("token")
    return Secret("zebra-crossing")


@event_facet(name="cached.login")
def login(token: Secret) -> int:
    return len(token.get_secret_value())


@workflow(name="cached.price")
def price(currency: str) -> int:
    return rate(currency)


@workflow(name="cached.prices")
def prices(currencies: list[str]) -> list[int]:
    return foreach(currencies, lambda currency: rate(currency))


@workflow(name="cached.paired")
def paired(a: str | None, b: str) -> str:
    return pair(a, b)


@workflow(name="cached.sizes")
def sizes(n: int) -> int:
    return size(large(n))


@workflow(name="cached.logins")
def logins() -> int:
    return login(token())


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    CALLS.clear()
    with Flow(store_url=database_url) as flow:
        yield flow


def count(flow: Flow, table: str) -> int:
    with flow.database.read() as session:
        return int(session.execute(text(f"SELECT count(*) FROM flowengine_{table}")).scalar())


def started(flow: Flow, tenant: str) -> Run[int]:
    launcher = EngineLauncher(flow.engine)
    return launcher.start(price, price.inputs("EUR"), StartOptions(tenant=tenant))


def test_a_second_run_completes_with_the_result_of_the_first_until_it_is_too_old(
    flow: Flow,
) -> None:
    first = flow.start(price, "EUR")
    flow.settle()
    later = flow.start(price, "EUR")
    assert later.info().is_final, "in the commit that starts it"
    assert later.result(timeout=0) == first.result(timeout=0) == 1
    assert flow.engine.tasks(later.id) == []
    assert flow.run(price, "USD") == 2
    flow.clock.advance(hours=1)
    assert flow.run(price, "EUR") == 3
    assert CALLS == ["EUR", "USD", "EUR"]


def test_the_run_and_step_that_had_the_result_are_recorded(flow: Flow) -> None:
    first = flow.start(price, "EUR")
    flow.settle()
    kept_at = flow.clock.now
    flow.clock.advance(minutes=5)
    later = flow.start(price, "EUR")
    (step,) = [step for step in later.steps() if step.facet == rate.name]
    assert step.cached_from is not None
    assert step.cached_from == (first.id, "price.rate", kept_at)
    assert (step.tries, step.all_tries) == (0, ())
    (entry,) = flow.engine.history(later.id)
    (hit,) = entry.reused
    assert (hit.path, hit.run, hit.source, hit.at) == (
        *("price.rate", first.id, "price.rate"),
        kept_at,
    )
    assert {step.cached_from for step in first.steps()} == {None}
    (event,) = flow.engine.events(later.id)
    assert event.state == "event.Completed"
    replay(flow.engine.export(later.id)).check()
    replay(flow.engine.export(first.id)).check()


def test_a_loop_asks_for_all_its_keys_at_once(flow: Flow) -> None:
    flow.run(prices, ["EUR", "USD"])
    assert flow.run(prices, ["USD", "GBP", "EUR"]) == [2, 3, 1]
    wide = [f"c{n}" for n in range(40)]
    assert flow.run(prices, wide) == flow.run(prices, wide)


def test_tenants_do_not_see_results_of_each_other(flow: Flow) -> None:
    runs = [started(flow, tenant) for tenant in ("shop", "bank")]
    flow.settle()
    shop, bank = (run.result(timeout=0) for run in runs)
    assert {shop, bank} == {1, 2}
    assert started(flow, "bank").result(timeout=0) == bank
    assert flow.run(price, "EUR") == 3


def test_a_large_result_is_stored_once_and_stays_as_long_as_somebody_has_it(flow: Flow) -> None:
    flow.run(sizes, 20_000)
    assert count(flow, "payload") == 1
    flow.clock.advance(minutes=30)
    flow.engine.purge(older_than=timedelta(minutes=10))
    assert (count(flow, "run"), count(flow, "payload")) == (0, 1), "the cache has the value"
    assert flow.run(sizes, 20_000) == 20_000
    assert CALLS == [20_000]
    assert count(flow, "payload") == 1
    flow.clock.advance(hours=2)
    flow.engine.purger.remove_expired(60, now=True)
    assert (count(flow, "cache"), count(flow, "payload")) == (0, 1), "the second run has it"
    assert flow.engine.doctor() == []
    flow.engine.purge(older_than=timedelta(minutes=10))
    assert (count(flow, "reference"), count(flow, "payload"), count(flow, "lock")) == (0, 0, 1)


def test_expired_results_are_removed_in_portions_an_hour_later(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purger, "_ROOTS", 8)
    flow.run(prices, [f"c{n}" for n in range(20)])
    assert count(flow, "cache") == 20
    flow.clock.advance(hours=1, minutes=59)
    flow.engine.purge(older_than=timedelta(days=1))
    assert count(flow, "cache") == 20
    flow.clock.advance(minutes=2)
    assert flow.engine.purger.remove_expired(60, now=True).rows == 20
    assert (count(flow, "cache"), count(flow, "reference")) == (0, 0)
    assert flow.engine.doctor() == []


def test_a_secret_result_is_encrypted_in_the_cache(database_url: str) -> None:
    pytest.importorskip("cryptography", reason="the extra `secrets` is not installed")
    CALLS.clear()
    settings = Settings(secret_keys="a" * 32)
    with Flow(store_url=database_url, settings=settings) as flow:
        assert [flow.run(logins), flow.run(logins)] == [14, 14]
        assert CALLS == ["token"]
        for run in flow.engine.list():
            replay(flow.engine.export(run.id)).check()
        with flow.database.read() as session:
            rows = session.execute(text("SELECT returns FROM flowengine_cache")).scalars().all()
    assert len(rows) == 1
    assert "$secret" in rows[0]
    assert "zebra" not in rows[0]


def test_a_retried_and_a_forked_step_run_again(flow: Flow) -> None:
    flow.run(price, "EUR")
    run = flow.start(price, "EUR")
    assert run.result(timeout=0) == 1
    run.retry(from_step="price.rate")
    flow.settle()
    assert run.result(timeout=0) == 2
    flow.clock.advance(seconds=1)
    fork = run.fork(from_step="price.rate")
    flow.settle()
    assert fork.result(timeout=0) == 3
    assert flow.run(price, "EUR") == 3, "the newest result counts"


def test_a_run_goes_on_when_its_first_step_is_answered_from_the_cache(flow: Flow) -> None:
    assert [flow.run(sizes, 10), flow.run(sizes, 10), flow.run(sizes, 9_000)] == [10, 10, 9_000]
    assert flow.run(sizes, 9_000) == 9_000
    assert CALLS == [10, 9_000]


def test_many_runs_of_one_commit_keep_and_use_results(flow: Flow) -> None:
    names = [f"c{n}" for n in range(12)]
    worker = flow.worker("w")
    first = price.start_many({"currency": name} for name in names)
    tasks = [worker.claim(run, "price.rate") for run in first]
    reports = [Report(task, Succeeded({"result": n})) for n, task in enumerate(tasks)]
    accepted, _ = flow.engine.report_many(reports)
    assert len(accepted) == 12
    later = price.start_many({"currency": name} for name in names)
    assert [run.result(timeout=0) for run in later] == list(range(12))
    assert (CALLS, count(flow, "cache")) == ([], 12)


def test_a_refused_report_leaves_nothing_in_the_cache(flow: Flow) -> None:
    run, worker = flow.start(price, "EUR"), flow.worker("w")
    task = worker.claim(run, "price.rate")
    flow.engine.release(task)
    assert not worker.report(task, 7)
    assert count(flow, "cache") == 0
    flow.settle()
    assert flow.run(price, "EUR") == 1


def test_other_arguments_never_share_a_result(flow: Flow) -> None:
    """The texts of their keys are the same: pair:a:b:c, pair:null:x."""
    for a, b in (("a", "b:c"), ("a:b", "c"), (None, "x"), ("null", "x")):
        assert flow.run(paired, a, b) == f"{a!r} and {b!r}"
