"""Tenants: filters of reads, apps that are bound to one, and workers that serve all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, text

from flowengine import event_facet, workflow
from flowengine.engine import Engine, queries
from flowengine.engine.results import RunMetrics
from flowengine.errors import TenantRefused, UnknownRun, UnknownStep
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Succeeded
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.testing import Flow
from flowengine.worker.spool import Spool, spool_record
from tests.integration.engines import claim, one, opened, watched


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine that is bound to no tenant."""
    with opened(database_url) as engine:
        yield engine


@pytest.fixture
def shop(database_url: str, engine: Engine) -> Iterator[Engine]:
    """An engine on the same database that is bound to the tenant `shop`."""
    with opened(database_url, settings=Settings(tenant="shop")) as bound:
        yield bound


def start(engine: Engine, tenant: str = "", **options: Any) -> str:
    return engine.start(one(), "Flow", {"x": 1}, tenant=tenant, **options).id


def listed(engine: Engine, **filters: Any) -> set[str]:
    return {run.id for run in engine.list(**filters)}


# --- filters ---


def test_a_tenant_filters_every_read(engine: Engine) -> None:
    runs = {tenant: start(engine, tenant) for tenant in ("", "shop", "press")}
    assert listed(engine) == set(runs.values())
    for tenant, run in runs.items():
        assert listed(engine, tenant=tenant) == {run}
        assert listed(engine, tenant=tenant, state="RUNNING", workflow="t.Flow") == {run}
        assert listed(engine, tenant=tenant, state="FAILED") == set()
        assert engine.get(run, tenant=tenant).tenant == tenant
        assert engine.find(run[:12], tenant=tenant).id == run
        assert len(engine.steps(run, tenant=tenant)) == 3
        assert len(engine.tasks(run, tenant=tenant)) == len(engine.events(run, tenant=tenant)) == 1
    for read in (engine.get, engine.find, engine.steps, engine.events):
        with pytest.raises(UnknownRun):
            read(runs["shop"], tenant="press")
    assert engine.tasks(runs["shop"], tenant="press") == []
    assert listed(engine, tenant="nobody") == set()


def test_a_prefix_that_is_ambiguous_among_all_is_found_in_one_tenant(engine: Engine) -> None:
    run = start(engine, "shop")
    start(engine, "press")
    assert engine.find("", tenant="shop").id == run


def test_pages_are_filtered_by_tenant(database_url: str) -> None:
    with Flow(store_url=database_url) as flow:
        started: dict[str, list[str]] = {"shop": [], "press": []}
        for number in range(6):
            tenant = ("shop", "press")[number % 2]
            started[tenant].append(start(flow.engine, tenant))
            flow.clock.advance(seconds=1)
        (task,) = flow.engine.tasks(started["shop"][0])
        claimed = flow.engine.claim_one(task.uuid, "default", WorkerIdentity())
        assert claimed is not None
        flow.engine.report(claimed, Succeeded({"y": 1}))

        def page(**filters: Any) -> list[str]:
            with flow.database.read() as session:
                found = queries.run_summaries(session, limit=2, **filters)
            assert {run.tenant for run in found} <= {filters["tenant"]}
            return [run.id for run in found]

        newest = started["shop"][::-1]
        assert page(tenant="shop") == newest[:2]
        assert page(tenant="shop", before=newest[1]) == newest[2:]
        assert page(tenant="shop", state="COMPLETED") == newest[2:]
        assert page(tenant="shop", state="RUNNING", workflow="flow") == newest[:2]
        with pytest.raises(UnknownRun):
            page(tenant="shop", before=started["press"][0])


def test_metrics_count_the_unfinished_runs_of_each_tenant(database_url: str) -> None:
    with Flow(store_url=database_url) as flow:
        assert flow.engine.metrics() == []
        begun = flow.clock.now
        start(flow.engine, "shop", priority=1)
        flow.clock.advance(seconds=1)
        start(flow.engine, "shop")
        start(flow.engine)
        flow.watchdog()  # no server has the code of t.Work
        shop = RunMetrics("shop", unfinished=2, alarms=2, oldest=begun)
        assert flow.engine.metrics() == [RunMetrics("", 1, 1, begun + 1000), shop]
        assert flow.engine.metrics(tenant="shop") == [shop]
        flow.engine.report(claim(flow.engine), Succeeded({"y": 1}))
        assert flow.engine.metrics(tenant="shop") == [RunMetrics("shop", 1, 1, begun + 1000)]


# --- a bound app ---


def test_a_bound_app_starts_all_runs_for_its_tenant(engine: Engine, shop: Engine) -> None:
    runs = {start(shop), start(shop, "shop"), shop.execute(one(), "Flow", {}).workflow_id}
    runs |= {run.id for run in shop.start_many(one(), "Flow", [{}, {}])}
    with engine.database.write() as session:
        runs.add(start(shop, connection=session.connection))
    assert {engine.get(run).tenant for run in runs} == {"shop"}
    assert len(runs) == 6


def test_a_bound_app_refuses_a_start_for_another_tenant(engine: Engine, shop: Engine) -> None:
    with pytest.raises(TenantRefused) as refused:
        start(shop, "press")
    assert str(refused.value) == (
        "tenant 'press' is refused: this app or token is bound to tenant 'shop' (settings tenant "
        "and tenant_tokens) and neither starts nor reads runs of others; leave the tenant out, or "
        "use an app or a token of that tenant"
    )
    with pytest.raises(TenantRefused):
        shop.start_many(one(), "Flow", [{}], tenant="press")
    assert engine.list() == []


def test_a_key_of_a_bound_app_belongs_to_its_tenant(engine: Engine, shop: Engine) -> None:
    first = start(shop, key="k")
    assert start(shop, key="k") == start(engine, "shop", key="k") == first
    assert start(engine, key="k") != first


@contextmanager
def unknown(kind: type[Exception]) -> Iterator[None]:
    """The same error as for an id that does not exist, but for the id."""
    with pytest.raises(kind) as refused:
        yield
    (name,) = refused.value.args
    assert str(refused.value) == str(kind(name))


def test_a_bound_app_reads_its_own_runs_alone(engine: Engine, shop: Engine) -> None:
    mine, other = start(engine, "shop"), start(engine, "press")
    assert listed(shop) == listed(shop, tenant="shop") == {mine}
    assert shop.find("").id == mine, "no other run makes a prefix ambiguous"
    assert [row.tenant for row in shop.metrics()] == ["shop"]
    reads: list[Callable[[str], Any]] = [
        *(shop.get, shop.find, shop.steps, shop.events, shop.run, shop.resume)
    ]
    for read in reads:
        read(mine)
        with unknown(UnknownRun):
            read(other)
    assert len(shop.tasks(mine)) == 1
    assert shop.tasks(other) == []
    for filtered in (shop.list, shop.metrics):
        with pytest.raises(TenantRefused):
            filtered(tenant="press")
    with pytest.raises(TenantRefused):
        shop.get(mine, tenant="")


def test_the_handle_of_a_run_reads_through_its_app(engine: Engine, shop: Engine) -> None:
    other = start(engine, "press")
    handle = type(engine.run(other))(shop, other)
    for read in (handle.info, handle.steps, lambda: handle.result(timeout=0), lambda: handle.state):
        with unknown(UnknownRun):
            read()


def test_a_bound_app_answers_for_steps_of_its_own_runs_alone(engine: Engine, shop: Engine) -> None:
    mine, other = start(engine, "shop"), start(engine, "press")
    (of_mine,), (of_other,) = engine.events(mine), engine.events(other)
    with unknown(UnknownStep):
        shop.continue_step(of_other.step_id, {"y": 1})
    with unknown(UnknownStep):
        shop.fail_step(of_other.step_id, "no")
    assert engine.get(other).state == RunState.RUNNING
    shop.continue_step(of_mine.step_id, {"y": 1})
    assert shop.get(mine).outputs == {"y": 1}


# --- workers ---


@event_facet
def sell(n: int) -> int:
    return n + 1


@workflow
def sale(n: int) -> int:
    return sell(n)


@event_facet
def decide(n: int) -> int:
    return sale.call(n)


@workflow
def order(n: int) -> int:
    sale.start(n)
    return decide(n)


def test_a_worker_of_a_bound_app_serves_all_tenants_and_children_inherit(
    database_url: str,
) -> None:
    with (
        Flow(store_url=database_url, settings=Settings(tenant="shop")) as flow,
        opened(database_url, clock=flow.clock, settings=Settings(tenant="press")) as press,
    ):
        run = press.start(order.program(), order.name, {"n": 1})
        flow.settle()
        assert flow.engine.list() == []
        assert run.result(timeout=0) == 2
        found = press.list()
        assert sorted(info.workflow for info in found) == [order.name, sale.name, sale.name]
        assert {info.tenant for info in found} == {"press"}
        children = [step.child_run for step in run.steps() if step.child_run]
        assert len(children) == 2
        assert {press.get(child).parent for child in children} == {run.id}


def test_a_worker_of_a_bound_app_delivers_spooled_reports_of_all_tenants(
    engine: Engine, shop: Engine, tmp_path: Any
) -> None:
    run = start(engine, "press")
    spool = Spool(str(tmp_path / "spool"))
    spool.write(spool_record(claim(engine), Succeeded({"y": 1})))
    assert spool.deliver(shop) == 1
    assert engine.get(run).outputs == {"y": 1}


def test_a_workflow_is_started_for_a_tenant(database_url: str) -> None:
    with Flow(store_url=database_url) as flow:
        run = sale.options(tenant="press").start(1)
        (many,) = sale.options(tenant="press").start_many([{"n": 2}])
        assert {flow.engine.get(each.id).tenant for each in (run, many)} == {"press"}
    with Flow(store_url=database_url, settings=Settings(tenant="shop")) as flow:
        assert flow.engine.get(sale.start(1).id).tenant == "shop"
        with pytest.raises(TenantRefused):
            sale.options(tenant="press").start(1)


# --- costs ---


@contextmanager
def statements_of(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    found: list[tuple[str, Any]] = []

    def listen(_c: Any, _cursor: Any, sql: str, values: Any, *_: Any) -> None:
        found.append((sql, values))

    event.listen(engine.database.engine, "before_cursor_execute", listen)
    with watched(engine, lambda sql, values: found.append((sql, values))):
        yield found
    event.remove(engine.database.engine, "before_cursor_execute", listen)


READS: dict[str, Callable[[Engine, str], Any]] = {
    "start": lambda engine, _: start(engine),
    "get": lambda engine, run: engine.get(run),
    "find": lambda engine, run: engine.find(run),
    "list": lambda engine, _: engine.list(),
    "steps": lambda engine, run: engine.steps(run),
    "continue": lambda engine, run: engine.continue_step(engine.steps(run)[0].id),
}


def test_a_binding_costs_no_statement_but_one_for_an_answer_from_outside(
    engine: Engine, shop: Engine
) -> None:
    run = start(shop)
    start(engine)
    more = {}
    for name, read in READS.items():
        counts = []
        for each in (engine, shop):
            read(each, run)
            with statements_of(each) as statements:
                read(each, run)
            counts.append(len(statements))
        more[name] = counts[1] - counts[0]
    assert more == {**dict.fromkeys(READS, 0), "continue": 1}


def test_a_filter_by_tenant_reads_no_run_of_other_tenants(engine: Engine) -> None:
    """By the index `flowengine_run_created`, also for a state that the tenant hardly has."""
    start(engine, "shop")
    engine.start_many(one(), "Flow", [{}] * 200, tenant="press")
    if engine.database.has_server:
        with engine.database.write() as session:
            session.connection.execute(text("ANALYZE flowengine_run"))
    reads: list[Callable[[], Any]] = [
        lambda: engine.list(tenant="shop", limit=10),
        lambda: engine.list(tenant="shop", state="RUNNING", limit=10),
        lambda: engine.list(tenant="shop", state="FAILED", limit=10),
        lambda: _page(engine, None),
        lambda: _page(engine, "COMPLETED"),
    ]
    for read in reads:
        with statements_of(engine) as statements:
            read()
        (listing,) = [each for each in statements if ".tenant =" in each[0]]
        plan = _plan(engine, *listing)
        assert "flowengine_run_created" in plan
        assert "flowengine_run_state" not in plan
    with statements_of(engine) as statements:
        assert len(engine.list(tenant="press", limit=10)) == 10
    (listing,) = [each for each in statements if ".tenant =" in each[0]]
    plan = _plan(engine, *listing)
    assert "flowengine_run_created" in plan
    if engine.database.has_server:
        assert "Index Scan Backward" in plan, "it ends after ten runs"
    else:
        assert "TEMP B-TREE FOR ORDER BY" not in plan, "it does not sort two hundred runs"


def _page(engine: Engine, state: str | None) -> None:
    with engine.database.read() as session:
        queries.run_summaries(session, state=state, tenant="shop", limit=10)


def _plan(engine: Engine, sql: str, values: Any) -> str:
    explain = "EXPLAIN" if engine.database.has_server else "EXPLAIN QUERY PLAN"
    with engine.database.read() as session:
        rows = session.connection.exec_driver_sql(f"{explain} {sql}", values).all()
    return "\n".join(str(row[-1]) for row in rows)
