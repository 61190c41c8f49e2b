"""The schema of the tables is a setting: two schemas of one database do not see each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from flowengine import event_facet, workflow
from flowengine.assembly import Embedded
from flowengine.assembly.launcher import EngineLauncher
from flowengine.authoring import StartOptions
from flowengine.engine import Engine
from flowengine.errors import DatabaseTooOld, InvalidInputs, InvalidSetting, StoreError, UnknownRun
from flowengine.evaluator.triggers import Report, Succeeded
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema, upgrade_schema
from flowengine.store.migrations import HEAD, VERSION_TABLE
from flowengine.store.schema_upgrade import migrate
from flowengine.store.tables import metadata
from tests.integration.engines import chain, claim, dump, one, opened, side_by_side
from tests.integration.threads import in_threads, wait_until
from tests.servers import PostgresServer

TABLES = {VERSION_TABLE, *metadata.tables}


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


@dataclass
class Two:
    """An engine in the default schema, and one in a schema of its own."""

    default: Engine
    other: Engine


@pytest.fixture
def two(url: str) -> Iterator[Two]:
    with opened(url) as default, opened(url, schema="other") as other:
        yield Two(default, other)


def tables(url: str) -> dict[str, set[str]]:
    """The tables of each schema."""
    found: dict[str, set[str]] = {}
    with admin(url) as connection:
        query = "SELECT schemaname, tablename FROM pg_tables WHERE tablename LIKE 'flowengine%'"
        for schema, table in connection.execute(query):
            found.setdefault(schema, set()).add(table)
    return found


def admin(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


# --- creating ---


def test_an_upgrade_creates_the_schema_and_all_tables_in_it(url: str) -> None:
    database = Database(url, schema="other")
    with pytest.raises(DatabaseTooOld, match=r"\(schema other\) has schema revision 'none'"):
        ensure_schema(database, upgrade=False)
    assert upgrade_schema(database) == ("", HEAD)
    assert upgrade_schema(database) == (HEAD, HEAD)
    database.close()
    assert tables(url) == {"other": TABLES}
    with pytest.raises(DatabaseTooOld):
        ensure_schema(database := Database(url), upgrade=False)
    database.close()


def test_migrations_run_in_the_schema(url: str) -> None:
    with opened(url) as default:
        before = dump(default)
        database = Database(url, schema="other")
        with database.write() as session:
            session.connection.execute(text("CREATE SCHEMA other"))
            migrate(session.connection)
        ensure_schema(database, upgrade=False)
        database.close()
        assert dump(default) == before
    assert tables(url) == {"public": TABLES, "other": TABLES}


def test_schemas_of_one_database_are_upgraded_at_the_same_moment(url: str) -> None:
    names = ["", "", "one", "one", "select", "select"]
    databases = [Database(url, schema=name) for name in names]
    done = in_threads([lambda each=each: upgrade_schema(each) for each in databases])
    for database in databases:
        database.close()
    assert sorted(done) == [("", HEAD)] * 3 + [(HEAD, HEAD)] * 3
    assert tables(url) == {"public": TABLES, "one": TABLES, "select": TABLES}


def test_an_upgrade_of_one_schema_does_not_hold_up_another(url: str) -> None:
    database = Database(url, schema="other")
    with admin(url) as connection, connection.transaction():
        # The lock of the default schema, as every version takes it.
        connection.execute("SELECT pg_advisory_xact_lock(x'666C6F77'::bigint)")
        assert in_threads([lambda: upgrade_schema(database)]) == [("", HEAD)]
    database.close()


def test_a_user_without_the_right_to_create_schemas_uses_an_existing_one(url: str) -> None:
    with admin(url) as connection:
        connection.execute("CREATE SCHEMA other")
        connection.execute("CREATE ROLE tenant_of_schemas LOGIN")
        connection.execute("GRANT ALL ON SCHEMA other TO tenant_of_schemas")
    try:
        database = Database(url.replace("flowengine@", "tenant_of_schemas@"), schema="other")
        assert upgrade_schema(database) == ("", HEAD)
        database.close()
    finally:
        with admin(url) as connection:
            connection.execute("DROP SCHEMA other CASCADE")
            connection.execute("DROP OWNED BY tenant_of_schemas")
            connection.execute("DROP ROLE tenant_of_schemas")


# --- names ---


@pytest.mark.parametrize(
    "name",
    ["Other", "1st", "a-b", "a b", 'a"; DROP TABLE x; --', "a,public", "pg_x", "ä", "x" * 48],
)
def test_the_name_of_a_schema_is_an_identifier(name: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        Database("postgresql://nobody@/nowhere", schema=name)
    assert str(refused.value) == (
        f"FLOWENGINE_SCHEMA={name!r} is not the name of a schema: lower-case letters, digits and "
        "underscores, 47 at most, without pg_ at the beginning"
    )


def test_sqlite_refuses_a_schema() -> None:
    with pytest.raises(StoreError, match="SQLite has no schemas: FLOWENGINE_SCHEMA='other'"):
        Database("sqlite://", schema="other")


# --- separation ---


def test_two_schemas_do_not_see_each_other(two: Two) -> None:
    mine, others = two.default.start(one(), "Flow", {}), two.other.start(one(), "Flow", {})
    for engine, run, other in ((two.default, mine, others), (two.other, others, mine)):
        assert [info.id for info in engine.list()] == [run.id]
        with pytest.raises(UnknownRun):
            engine.get(other.id)
    # Workers keep a connection with prepared statements: the fast path through libpq.
    for engine, run, result in ((two.other, others, 2), (two.default, mine, 1)):
        with engine.database.keep_connection():
            accepted, _ = engine.report_many([Report(claim(engine), Succeeded({"y": result}))])
            assert accepted
            assert engine.claim_task(["t.Work"]) is None
        assert run.outputs(timeout=0) == {"y": result}
    for engine, path in ((two.default, '"$user", public'), (two.other, "other")):
        with engine.database.read() as session:
            assert session.connection.scalar(text("SHOW search_path")) == path


def test_a_chain_and_a_fan_out_run_in_a_schema(two: Two) -> None:
    before = dump(two.default)
    names = [f"s{number}" for number in range(60)]
    for program, tasks in ((chain("a", "b", "c"), 3), (side_by_side(*names), 60)):
        run = two.other.start(program, "Flow", {"x": 1})
        with two.other.database.keep_connection():
            for _ in range(tasks):
                two.other.report(claim(two.other), Succeeded({"y": 1}))
        assert run.info().state == "COMPLETED"
    assert dump(two.default) == before


def test_the_end_of_a_run_is_notified_in_its_schema_alone(two: Two) -> None:
    heard: dict[str, list[str]] = {"default": [], "other": []}
    listeners = []
    for name, engine in (("default", two.default), ("other", two.other)):
        connected = threading.Event()
        listener = engine.database.listen(heard[name].append, connected.set)
        assert connected.wait(60)
        listeners.append(listener)
    try:
        ended: dict[str, list[str]] = {"default": [], "other": []}
        for name, engine in 2 * (("other", two.other), ("default", two.default)):
            ended[name].append(engine.start(one(), "Flow", {}).id)
            engine.report(claim(engine), Succeeded({"y": 1}))
        # Notifications come in the order of their commits: before its second end, each listener
        # has received everything of the first one of the other.
        wait_until(lambda: min(map(len, heard.values())) >= 2, "both were notified")
        assert heard == ended
    finally:
        for listener in listeners:
            assert listener is not None
            listener.stop()


def test_the_schema_public_is_the_default_one(url: str) -> None:
    with opened(url) as default, opened(url, schema="public") as named:
        run = default.start(one(), "Flow", {})
        assert named.get(run.id).id == run.id
        heard: list[str] = []
        connected = threading.Event()
        listener = named.database.listen(heard.append, connected.set)
        assert listener is not None
        assert connected.wait(60)
        default.report(claim(default), Succeeded({"y": 1}))
        wait_until(lambda: heard == [run.id], "the end is heard of")
        listener.stop()


@event_facet
def inc(n: int) -> int:
    return n + 1


@workflow
def thrice(n: int) -> int:
    return inc(inc(inc(n)))


def test_an_embedded_process_works_in_its_schema_alone(url: str, tmp_path: Path) -> None:
    settings = Settings(database_url=url, schema="other", spool_directory=str(tmp_path))
    upgrade_schema(database := Database(url, schema="other"))
    database.close()
    embedded = Embedded(settings)
    try:
        run = EngineLauncher(embedded.engine).start(thrice, {"n": 1}, StartOptions())
        assert run.result(timeout=60) == 4
    finally:
        embedded.close()
    assert set(tables(url)) == {"other"}


# --- in a transaction of the caller ---


def test_a_start_inside_a_transaction_uses_the_schema_and_keeps_the_search_path(
    two: Two, url: str
) -> None:
    application = create_engine(url)
    try:
        with application.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id integer)"))
            run = two.other.start(one(), "Flow", {}, key="k", connection=connection)
            again = two.other.start(one(), "Flow", {}, key="k", connection=connection)
            assert connection.scalar(text("SHOW search_path")) == '"$user", public'
            connection.execute(text("INSERT INTO orders VALUES (1)"))
        assert run.id == again.id
        assert two.other.get(run.id).state == "RUNNING"
        assert two.default.list() == []
        with application.connect() as connection, connection.begin() as transaction:
            two.other.start(one(), "Flow", {}, connection=connection)
            with pytest.raises(InvalidInputs):
                two.other.start(one(), "Flow", {"nope": 1}, connection=connection)
            assert connection.scalar(text("SHOW search_path")) == '"$user", public'
            transaction.rollback()
        assert [info.id for info in two.other.list()] == [run.id]
    finally:
        application.dispose()


def test_a_failed_start_inside_a_savepoint_restores_the_search_path(url: str) -> None:
    application = create_engine(url)
    missing = Database(url, schema="missing")
    try:
        with application.begin() as connection:
            with pytest.raises(Exception, match="does not exist"), connection.begin_nested():
                Engine(missing).start(one(), "Flow", {}, connection=connection)
            assert connection.scalar(text("SHOW search_path")) == '"$user", public'
    finally:
        missing.close()
        application.dispose()
