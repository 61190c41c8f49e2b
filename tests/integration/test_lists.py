"""Lists of runs: every filter, pages without gaps, and the same cost among few and many runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text

from flowengine import GiveUp, Limit, Retry, attempt, event_facet, sleep, wait_for, workflow
from flowengine.engine import Engine, Run
from flowengine.errors import InvalidFilter
from flowengine.testing import Flow
from tests.integration.engines import one, opened, watched
from tests.servers import PostgresServer


@event_facet(name="lists.work")
def work(n: int) -> int:
    if n < 0:
        raise ZeroDivisionError("negative")
    return n


@workflow(name="lists.first")
def first(n: int) -> int:
    return work(n)


@workflow(name="lists.second")
def second(n: int) -> int:
    return work(n)


@workflow(name="lists.asks")
def asks() -> bool:
    return wait_for("approval", bool)


@workflow(name="lists.naps")
def naps() -> str:
    return sleep(60)


@workflow(name="lists.parent")
def parent(n: int) -> int:
    return first.start(n).result()


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def ids(runs: Any) -> list[str]:
    return [run.id for run in runs]


def test_each_filter_finds_its_runs(flow: Flow) -> None:
    engine = flow.engine
    runs: dict[str, Run[Any]] = {}
    for name, start in {
        "done": lambda: first.options(labels={"team": "a", "note": "x" * 900}).start(1),
        "failed": lambda: second.options(key="order-7", labels={"team": "b"}).start(-1),
    }.items():
        runs[name] = start()
        flow.settle()
        flow.clock.advance(seconds=10)
    middle = flow.clock.now
    for name, start in {
        "asks": asks.start,
        "naps": naps.start,
        "parent": lambda: parent.start(2),
    }.items():
        runs[name] = start()
        flow.clock.advance(seconds=10)
    worker = flow.worker("one")
    worker.work_on(worker.claim(runs["parent"], "first"))
    child = engine.list(parent=runs["parent"].id)
    runs["child"] = engine.run(child[0].id)

    def found(**filters: Any) -> set[str]:
        listed = {run.id for run in engine.list(**filters)}
        return {name for name, run in runs.items() if run.id in listed}

    assert found() == set(runs)
    assert found(state="FAILED") == {"failed"}
    assert found(state=["FAILED", "COMPLETED"]) == {"failed", "done"}
    assert found(workflow="lists.first") == {"done", "child"}
    assert found(named="second") == {"failed"}
    assert found(named="ISTS.FIR") == {"done", "child"}
    assert found(label={"team": "a"}) == {"done"}
    assert found(label={"team": "a", "note": "x" * 900}) == {"done"}
    assert found(label={"team": "c"}) == set()
    assert found(key="order-7") == {"failed"}
    assert found(key="order-7", state="COMPLETED") == set()
    assert found(id_prefix=runs["done"].id[:8]) == {"done"}
    assert found(created_after=middle) == {"asks", "naps", "parent", "child"}
    moment = datetime.fromtimestamp(middle / 1000, UTC)
    assert found(created_before=moment) == {"done", "failed"}
    assert found(finished_before=middle, workflow="lists.first") == {"done"}
    assert found(error_type="ZeroDivisionError") == {"failed"}
    assert found(parent=runs["parent"].id) == {"child"}
    assert found(alarm=True) == set()
    assert found(alarm=False, state="RUNNING") == {"asks", "naps", "parent", "child"}
    assert found(waits_for="answer") == {"asks"}
    assert found(waits_for="time") == {"naps"}
    assert found(waits_for="child run") == {"parent"}
    assert found(waits_for="worker") == {"child"}
    with flow.database.write() as session:
        change = text("UPDATE flowengine_run SET alarm = 'x' WHERE id = :id")
        session.connection.execute(change, {"id": runs["asks"].id})
    assert found(alarm=True) == {"asks"}
    assert found(tenant="") == set(runs)
    assert found(tenant="shop") == set()


@event_facet(name="lists.limited", limit=Limit("shop", 1))
def limited(n: int) -> int:
    return n


@workflow(name="lists.behind")
def behind(n: int) -> int:
    return limited(n)


def test_runs_behind_a_limit_and_held_runs_are_found(flow: Flow) -> None:
    one, other, held = behind.start(1), behind.start(2), first.start(3)
    flow.worker("one").claim(one, "limited")
    held.hold()
    waiting = flow.engine.list(waits_for="limit")
    assert ids(waiting) == [other.id]
    assert waiting[0].waits_for is not None
    assert waiting[0].waits_for.subject == "shop"
    assert ids(flow.engine.list(waits_for="hold")) == [held.id]
    assert ids(flow.engine.list(state="HELD")) == [held.id]


def test_the_server_filter_finds_runs_of_which_it_runs_a_step(flow: Flow) -> None:
    first.start(1)
    other = second.start(1)
    flow.worker("one").claim(other, "work")
    (server,) = [s for s in flow.engine.servers() if s.server_name]
    assert ids(flow.engine.list(server=server.server_name)) == [other.id]
    assert ids(flow.engine.list(server=server.uuid)) == [other.id]


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"state": "RUNNING"},
        {"state": ["RUNNING", "COMPLETED"]},
        {"workflow": ["lists.first", "lists.second"]},
        {"label": {"even": "yes"}},
        {"tenant": ""},
        {"waits_for": "worker"},
        {"id_prefix": "of the first run"},
    ],
    ids=str,
)
def test_pages_have_every_run_once_in_order(flow: Flow, filters: dict[str, Any]) -> None:
    for n in range(23):
        options = {"labels": {"even": "yes"}} if n % 2 == 0 else {}
        (first if n % 3 else second).options(**options).start(n)
        if n % 5 == 0:
            flow.clock.advance(seconds=1)  # several have the same time
    if "id_prefix" in filters:
        filters = {"id_prefix": flow.engine.list()[0].id[:1]}
    whole = ids(flow.engine.list(limit=100, **filters))
    assert whole
    seen: list[str] = []
    cursor = None
    for _ in range(50):
        page = flow.engine.list(limit=4, cursor=cursor, **filters)
        seen += ids(page)
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == whole
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"state": "DONE"}, "the filter state is 'DONE': it must be one of QUEUED, RUNNING"),
        ({"label": "a=b"}, "the filter label is 'a=b': it must be a map of text to text"),
        ({"id_prefix": "xyz"}, "it must be the first digits of an id: 0-9 and a-f"),
        ({"created_after": "yesterday"}, "it must be a datetime with a time zone"),
        ({"server": "nobody"}, "it must be the name or id of a server that is registered"),
        (
            {"waits_for": "godot"},
            "the filter waits_for is 'godot': it must be one of hold, diverged",
        ),
        ({"cursor": "1"}, "the filter cursor is '1': it must be the cursor of an earlier page"),
        ({"colour": "red"}, "the filter colour is 'red': it must be one of agents, alarm, created"),
        ({"agents": "yes"}, "the filter agents is 'yes': it must be True or False"),
    ],
)
def test_a_bad_filter_is_refused(flow: Flow, filters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        flow.engine.list(**filters)
    assert message in str(caught.value)


# --- costs ---

_READ = """
SELECT sum(coalesce(t.seq_tup_read, 0) + coalesce(t.idx_tup_fetch, 0))
FROM pg_stat_user_tables t"""
WORKFLOW = "t.Flow"
LISTS: dict[str, Callable[[Engine], Any]] = {
    "newest": lambda engine: engine.list(limit=10),
    "state": lambda engine: engine.list(state="RUNNING", limit=10),
    "label": lambda engine: engine.list(label={"team": "rare"}, limit=10),
    "workflow": lambda engine: engine.list(workflow=WORKFLOW, limit=10),
    "key": lambda engine: engine.list(key="rare", limit=10),
    "error": lambda engine: engine.list(error_type="Rare", limit=10),
    "state and workflow": lambda engine: engine.list(workflow=WORKFLOW, state="FAILED", limit=10),
}


def test_a_list_reads_the_same_rows_among_few_and_many_runs(postgres: PostgresServer) -> None:
    def rows_read(runs: int) -> dict[str, int]:
        url = postgres.new_database()
        found = {}
        with opened(url) as engine:
            engine.start(one(), "Flow", {}, key="rare", labels={"team": "rare"})
            for at in range(0, runs, 500):
                engine.start_many(one(), "Flow", [{}] * min(500, runs - at))
            with engine.database.write() as session:
                session.connection.execute(text("ANALYZE"))
            assert engine.list(limit=1)[0].workflow == WORKFLOW
            for name, read in LISTS.items():
                engine.database.engine.dispose()

                def counted() -> int:
                    with engine.database.read() as session:
                        session.connection.execute(text("SELECT pg_stat_force_next_flush()"))
                    with engine.database.read() as session:
                        return int(session.connection.execute(text(_READ)).scalar_one())

                before = counted()
                read(engine)
                found[name] = counted() - before
        postgres.drop_database(url)
        return found

    few, many = rows_read(1_200), rows_read(2_400)
    print(few, many)
    assert {name: many[name] <= few[name] * 1.2 + 60 for name in few} == dict.fromkeys(few, True)


def test_a_list_is_read_by_one_statement_and_its_waits_by_a_few(flow: Flow) -> None:
    for n in range(20):
        first.start(n)
    statements: list[str] = []
    with watched(flow.engine, lambda sql, _: statements.append(sql)):
        flow.engine.list(limit=5)
    assert len([sql for sql in statements if "UNION ALL" in sql]) <= 1


class Wrapped(Exception):
    """An error of a library that hides another."""


@event_facet(name="lists.wraps", retry=Retry(attempts=1))
def wraps(n: int) -> int:
    try:
        return 1 // n
    except ZeroDivisionError as problem:
        raise Wrapped("no result") from problem


@event_facet(name="lists.gives_up", retry=Retry(attempts=1))
def gives_up(n: int) -> int:
    raise GiveUp("compensated")


@workflow(name="lists.catches")
def catches(n: int) -> int:
    return attempt(lambda: work(n), catch=lambda error: work(0))


@workflow(name="lists.reraises")
def reraises(n: int) -> int:
    return attempt(lambda: work(n), catch=lambda error: gives_up(n))


@workflow(name="lists.hides")
def hides(n: int) -> int:
    return wraps(n)


@workflow(name="lists.awaits")
async def awaits(n: int) -> int:
    try:
        return await work(n)
    except ZeroDivisionError:
        return 0


@pytest.mark.each_database
def test_the_error_filter_finds_causes_behind_a_catch_or_a_wrapper(flow: Flow) -> None:
    runs = {
        "failed": second.start(-1),
        "caught": catches.start(-1),
        "raised again": reraises.start(-1),
        "wrapped": hides.start(0),
        "caught in a function": awaits.start(-1),
        "child": parent.start(-1),
        "none": first.start(1),
    }
    flow.settle()
    assert runs["caught"].state == runs["caught in a function"].state == "COMPLETED"
    assert "GiveUp: compensated (while handling" in runs["raised again"].info().error_text
    names = {run.id: name for name, run in runs.items()}

    def found(kind: str, **filters: Any) -> list[str | None]:
        return [names.get(run.id) for run in flow.engine.list(error_type=kind, **filters)]

    of_children = [None, "child"]  # the child run itself, and the run that started it
    expected = {"failed", "caught", "raised again", "wrapped", "caught in a function", *of_children}
    assert set(found("ZeroDivisionError")) == expected
    assert len(found("ZeroDivisionError")) == len(expected)
    assert set(found("ZeroDivisionError", state="FAILED")) == expected - {
        *("caught", "caught in a function")
    }
    assert found("GiveUp") == ["raised again"]
    assert found("Wrapped", workflow="lists.hides") == ["wrapped"]
    assert found("Skipped") == []
    assert flow.engine.list(label={}) != []
    pages = []
    page = flow.engine.list(error_type="ZeroDivisionError", limit=2)
    while page.cursor:
        pages += ids(page)
        page = flow.engine.list(error_type="ZeroDivisionError", limit=2, cursor=page.cursor)
    assert len({*pages, *ids(page)}) == len(expected)


def test_a_failed_run_writes_no_row_for_an_error_that_its_own_row_tells(flow: Flow) -> None:
    second.start(-1)
    flow.settle()
    with flow.database.read() as session:
        count = session.connection.execute(text("SELECT count(*) FROM flowengine_label")).scalar()
    assert count == 0
