"""Lists of runs leave out those of agents, at no cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from flowengine.engine import Engine
from flowengine.engine.queries import run_summaries
from tests.integration.engines import one, opened
from tests.integration.test_tenants import _plan, statements_of

HIDDEN = 300


@pytest.fixture
def among_many(database_url: str) -> Iterator[Engine]:
    """An engine with two runs among many of agents."""
    with opened(database_url) as engine:
        _fill(engine)
        yield engine


def _fill(engine: Engine) -> None:
    engine.start_many(one(), "Flow", [{}] * HIDDEN)
    with engine.database.write() as session:
        session.connection.execute(text("UPDATE flowengine_run SET agent_call = '[]'"))
    engine.start_many(one(), "Flow", [{}] * 2)
    if engine.database.has_server:
        with engine.database.write() as session:
            session.connection.execute(text("ANALYZE flowengine_run"))


def _summaries(engine: Engine, **filters: Any) -> list[Any]:
    with engine.database.read() as session:
        return run_summaries(session, limit=1_000, **filters)


READS: dict[str, tuple[Callable[[Engine], Any], str]] = {
    "all": (lambda engine: engine.list(limit=1_000), "flowengine_run_state"),
    "state": (lambda engine: engine.list(state="RUNNING", limit=1_000), "flowengine_run_state"),
    "tenant": (lambda engine: engine.list(tenant="", limit=1_000), "flowengine_run_created"),
    "page": (lambda engine: _summaries(engine, state="RUNNING"), "flowengine_run_state"),
    "page of a tenant": (lambda engine: _summaries(engine, tenant=""), "flowengine_run_created"),
}


@pytest.mark.parametrize("name", READS)
def test_a_list_reads_no_run_of_an_agent(among_many: Engine, name: str) -> None:
    read, index = READS[name]
    with statements_of(among_many) as statements:
        assert len(read(among_many)) == 2
    listing = next(each for each in statements if "agent_call IS NULL" in each[0])
    assert index in _plan(among_many, *listing)


def test_runs_of_agents_are_listed_by_an_index_of_their_own(among_many: Engine) -> None:
    for filters in ({}, {"state": "RUNNING"}, {"tenant": ""}, {"named": "Flow"}):
        assert len(among_many.list(agents=True, limit=1_000, **filters)) == HIDDEN, filters
    with statements_of(among_many) as statements:
        among_many.list(agents=True, state="RUNNING")
    listing = next(each for each in statements if "agent_call IS NOT NULL" in each[0])
    assert "flowengine_run_agent_state" in _plan(among_many, *listing)


def test_bulk_actions_leave_runs_of_agents_alone(among_many: Engine) -> None:
    assert among_many.cancel_all(state="RUNNING", dry_run=True).matched == 2


def test_metrics_and_retention_know_the_runs_of_agents(among_many: Engine) -> None:
    (row,) = among_many.queries.metrics()
    assert row.unfinished == HIDDEN + 2
    with among_many.database.write() as session:
        change = "UPDATE flowengine_run SET state = 'COMPLETED', finished = 1, created = 1"
        session.connection.execute(text(f"{change} WHERE agent_call IS NOT NULL"))
    assert among_many.purge(older_than=timedelta(days=1), dry_run=True).runs == HIDDEN
    assert among_many.purge(older_than=timedelta(days=1)).runs == HIDDEN
