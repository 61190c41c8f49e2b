"""The schema: made by migrations, the same as the classes say, and never guessed at."""

from __future__ import annotations

import functools
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, event, inspect, text

from flowengine.errors import DatabaseReadOnly, DatabaseTooNew, DatabaseTooOld, StoreError
from flowengine.store import Database, ensure_schema, migrations, refuse_newer, upgrade_schema
from flowengine.store.migrations import HEAD, KNOWN, LOWEST, VERSION_TABLE
from flowengine.store.schema_sql import upgrade_sql
from flowengine.store.schema_upgrade import lowest_code, migrate, revision_of
from flowengine.store.tables import agent_tables, metadata
from tests.histories import snapshots
from tests.integration.engines import one, opened
from tests.integration.threads import Ready, in_processes, in_threads
from tests.servers import PostgresServer

pytestmark = pytest.mark.each_database


@pytest.fixture
def database(empty_database_url: str) -> Iterator[Database]:
    database = Database(empty_database_url)
    yield database
    database.close()


# --- migrations and classes ---


def test_migrations_lead_to_the_schema_that_the_classes_say(database: Database) -> None:
    with database.write() as session:
        connection = session.connection
        migrate(connection)
    with database.read() as session:
        connection = session.connection
        assert revision_of(connection) == HEAD
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": True,
                "version_table": VERSION_TABLE,
            },
        )
        assert compare_metadata(context, metadata) == []
        assert set(inspect(connection).get_table_names()) == {VERSION_TABLE, *metadata.tables}
    assert all(name.startswith("flowengine_") for name in metadata.tables)


def indexes(database: Database) -> dict[str, str]:
    """Each index as the database describes it, with the condition of a partial one."""
    with database.read() as connection:
        found = connection.execute(
            text(
                "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
                if database.has_server
                else "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
            )
        )
        return {row[0]: row[1] for row in found if VERSION_TABLE not in row[0]}


def room(database: Database) -> dict[str, list[str]]:
    """Return the tables with a fill factor or other storage options."""
    if not database.has_server:
        return {}
    query = text("SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL")
    with database.read() as connection:
        found = {row[0]: row[1] for row in connection.execute(query)}
    return {name: options for name, options in found.items() if name in metadata.tables}


def words(database: Database) -> dict[tuple[str, str], str]:
    """How PostgreSQL compares the short texts of our tables."""
    if not database.has_server:
        return {}
    columns = text(
        "SELECT table_name, column_name, collation_name FROM information_schema.columns "
        "WHERE table_name LIKE 'flowengine%' AND data_type = 'character varying'"
    )
    with database.read() as connection:
        found = {(row[0], row[1]): row[2] for row in connection.execute(columns)}
    return {place: order for place, order in found.items() if place[0] in metadata.tables}


def test_migrations_lead_to_all_else_that_the_classes_say(database: Database) -> None:
    # Alembic does not compare the conditions of indexes, nor this.
    with database.write() as session:
        connection = session.connection
        migrate(connection)
    migrated = indexes(database), room(database), words(database)
    with database.write() as session:
        connection = session.connection
        metadata.drop_all(connection)
        connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
    assert upgrade_schema(database) == ("", HEAD)
    assert migrated == (indexes(database), room(database), words(database))
    assert not database.has_server or set(room(database)) == {"flowengine_run", "flowengine_step"}
    assert not database.has_server or set(words(database).values()) == {"C"}


def test_migrations_go_on_from_a_schema_that_was_made_at_once(database: Database) -> None:
    upgrade_schema(database)
    made = indexes(database)
    with database.write() as session:
        connection = session.connection
        migrate(connection)  # Alembic finds its own mark there, and nothing to do
        assert connection.scalar(text(f"SELECT count(*) FROM {VERSION_TABLE}")) == 1
    assert indexes(database) == made


def test_the_package_knows_its_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [HEAD], "one line of migrations, and we work with its end"
    oldest_first = [script.revision for script in scripts.walk_revisions()][::-1]
    assert oldest_first == list(KNOWN)


# --- upgrading ---


def test_an_upgrade_of_a_database_that_is_up_to_date_does_nothing(database: Database) -> None:
    assert upgrade_schema(database) == ("", HEAD)
    before = indexes(database)
    assert upgrade_schema(database) == (HEAD, HEAD)
    ensure_schema(database, upgrade=True)
    ensure_schema(database, upgrade=False)
    assert indexes(database) == before


def columns(connection: Connection, table: str) -> list[str]:
    return [column["name"] for column in inspect(connection).get_columns(table)]


def counted_from_zero(rows: snapshots.Rows) -> snapshots.Rows:
    """The rows with the columns that 0003 and 0004 add, as they add them."""
    runs = rows["flowengine_run"]
    added = [runs["columns"].index(name) for name in ("step_count", "depth", "value_bytes")]
    zeros = [[0 if at in added else v for at, v in enumerate(row)] for row in runs["rows"]]
    return {**rows, "flowengine_run": {**runs, "rows": zeros}}


def indexes_of_agents() -> set[str]:
    """The indexes of the tables that 0018 adds."""
    models = [model for model in vars(agent_tables).values() if hasattr(model, "__table__")]
    return {str(index.name) for model in models for index in model.__table__.indexes}


def test_an_upgrade_from_0001_changes_the_columns_and_keeps_the_rows(
    database: Database, empty_database_url: str
) -> None:
    with opened(empty_database_url) as engine:
        engine.start(one(), "Flow", {}, tenant="a")
    rows = snapshots.take(database)
    with database.write() as session:
        connection = session.connection
        metadata.drop_all(connection)
        connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
        snapshots.migrate_to(connection, "0001")
        assert "trace_id" in columns(connection, "flowengine_run")
        assert "usage" in columns(connection, "flowengine_task")
        earlier = MetaData()
        earlier.reflect(connection)
        for name, table in rows.items():
            snapshots.insert_rows(connection, earlier.tables[name], table)
    before = indexes(database)
    assert upgrade_schema(database) == ("0001", HEAD)
    assert snapshots.take(database) == counted_from_zero(rows)
    assert {"flowengine_run", "flowengine_task"} <= rows.keys()
    new = indexes(database).keys() - before.keys()
    assert {name for name in new if not name.endswith("_pkey")} == {
        *("flowengine_run_root", "flowengine_run_workflow", "flowengine_run_error_type"),
        *("flowengine_run_key", "flowengine_run_released_key", "flowengine_step_mailbox"),
        *("flowengine_label_run", "flowengine_reference_hash", "flowengine_outbox_due"),
        *("flowengine_task_waiting", "flowengine_limit_due"),
        *("flowengine_queue_turn", "flowengine_queue_due"),
        *("flowengine_cache_key", "flowengine_cache_expires", "flowengine_worklock_expires"),
        *("flowengine_unnumbered_created", "flowengine_feed_run", "flowengine_feed_tenant"),
        *("flowengine_run_queued", "flowengine_run_queued_id"),
        *("flowengine_token_name", "flowengine_token_digest"),
        *indexes_of_agents(),
        *("flowengine_schedule_due", "flowengine_tick_created"),
        *("flowengine_log_run", "flowengine_log_created"),
        *("flowengine_run_agent_created", "flowengine_run_agent_state"),
        "flowengine_fact_action",
    }
    del before["flowengine_task_due"]  # 0005 gives it the tenant
    del before["flowengine_server_state"]  # 0007 takes the heartbeat out of it
    for name in ("created", "state"):  # 0018 takes the runs of agents out of them
        del before[f"flowengine_run_{name}"]
    assert before.items() <= indexes(database).items()
    with database.read() as session:
        assert "trace_id" not in columns(session.connection, "flowengine_run")
        assert "usage" not in columns(session.connection, "flowengine_task")
    with opened(empty_database_url) as engine:
        engine.start(one(), "Flow", {})


def upgrade_in_process(ready: Ready, url: str) -> str:
    database = Database(url)
    try:
        ready()
        ensure_schema(database, upgrade=True)
        with database.read() as session:
            connection = session.connection
            return revision_of(connection)
    finally:
        database.close()


def test_two_processes_that_upgrade_an_empty_database_at_once_both_succeed(
    database: Database, empty_database_url: str
) -> None:
    assert in_processes(upgrade_in_process, [(empty_database_url,)] * 2) == [HEAD, HEAD]
    with opened(empty_database_url) as engine:
        engine.start(one(), "Flow", {})


def test_sqlite_threads_that_open_a_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    # Each with connections of its own, as processes have; often, for the moment is short.
    for attempt in range(20):
        url = f"sqlite:///{tmp_path}/{attempt}.db"
        found = in_threads([lambda url=url: upgrade_in_process(int, url)] * 4)  # type: ignore[misc]
        assert found == [HEAD] * 4


def test_sqlite_databases_in_memory_have_the_schema_of_a_file_and_no_rows_of_each_other(
    tmp_path: Path,
) -> None:
    def schema(database: Database) -> set[tuple[str, str]]:
        with database.read() as session:
            found = session.execute(text("SELECT name, sql FROM sqlite_master"))
            return {(row[0], row[1]) for row in found}

    with opened(f"sqlite:///{tmp_path}/flow.db") as file:
        expected = schema(file.database)
    for _ in range(2):
        with opened("sqlite://") as engine:
            assert schema(engine.database) == expected
            assert engine.list() == []
            engine.start(one(), "Flow", {"x": 1})
            upgrade_schema(engine.database)
            assert len(engine.list()) == 1


def test_sqlite_threads_that_open_one_database_in_memory_leave_its_rows() -> None:
    def write(database: Database) -> None:
        upgrade_schema(database)
        with database.write() as session:
            session.execute(text("CREATE TABLE IF NOT EXISTS kept (number)"))
            session.execute(text("INSERT INTO kept VALUES (1)"))

    for _ in range(20):  # often, for the moment is short
        database = Database("sqlite://")
        in_threads([functools.partial(write, database)] * 8)
        with database.read() as session:
            assert session.execute(text("SELECT count(*) FROM kept")).scalar() == 8
        database.close()


def test_sqlite_tables_in_memory_that_were_there_before_are_left_alone() -> None:
    database = Database("sqlite://")
    with database.write() as session:
        session.execute(text("CREATE TABLE mine (name)"))
    assert upgrade_schema(database) == ("", HEAD)
    with database.read() as session:
        assert session.execute(text("SELECT count(*) FROM mine")).scalar() == 0
    database.close()


def test_threads_that_upgrade_several_databases_at_once_do_not_mix_them_up(tmp_path: Path) -> None:
    # Alembic keeps what it is doing in a module.
    urls = [f"sqlite:///{tmp_path}/{number}.db" for number in range(4)]
    found = in_threads([lambda url=url: upgrade_in_process(int, url) for url in urls])  # type: ignore[misc]
    assert found == [HEAD] * 4
    for url in urls:
        use(url)


def test_an_upgrade_that_fails_leaves_nothing_behind(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_: Connection) -> None:
        raise RuntimeError("the power went out")

    with monkeypatch.context() as patch:
        patch.setattr("flowengine.store.schema_upgrade._stamp", breaks)
        with pytest.raises(RuntimeError, match="power"):
            upgrade_schema(database)
    with database.read() as session:
        connection = session.connection
        assert inspect(connection).get_table_names() == []
    ensure_schema(database, upgrade=True)


def test_the_tables_of_the_users_application_are_left_alone(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("CREATE TABLE orders (number INTEGER)"))
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('theirs')"))
    ensure_schema(database, upgrade=True)
    with database.read() as session:
        connection = session.connection
        assert revision_of(connection) == HEAD
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "theirs"
        assert {"orders", "alembic_version"} <= set(inspect(connection).get_table_names())


# --- a database that cannot be used as it is ---


def set_revision(database: Database, revision: str) -> None:
    with database.write() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = :to"), {"to": revision})


def newer_schema(database: Database, revision: str, lowest: int, *statements: str) -> None:
    """Do what a newer flowengine does with its migration."""
    upgrade_schema(database)
    with database.write() as connection:
        for statement in statements:
            connection.execute(text(statement))
    set_revision(database, revision)
    set_lowest(database, lowest)


def execute_script(database: Database, script: str) -> None:
    if database.has_server:
        lines = [line for line in script.splitlines() if line not in ("BEGIN;", "COMMIT;")]
        with database.write() as session:
            session.connection.exec_driver_sql("\n".join(lines))
        return
    assert database.file is not None
    with closing(sqlite3.connect(database.file)) as connection:
        connection.executescript(script)


def set_lowest(database: Database, lowest: int | None) -> None:
    with database.write() as connection:
        connection.execute(text("DELETE FROM flowengine_counter"))
        if lowest is not None:
            row = text("INSERT INTO flowengine_counter (name, value) VALUES (:name, :lowest)")
            connection.execute(row, {"name": "schema.lowest", "lowest": lowest})


@pytest.mark.parametrize("upgrade", [True, False])
@pytest.mark.parametrize("lowest", [None, 9998])
def test_a_newer_database_that_this_code_cannot_work_with_is_not_touched(
    database: Database, upgrade: bool, lowest: int | None
) -> None:
    upgrade_schema(database)
    set_revision(database, "9999")
    set_lowest(database, lowest)
    with pytest.raises(DatabaseTooNew) as caught:
        ensure_schema(database, upgrade=upgrade)
    why = (
        "which this flowengine does not know: a newer version upgraded it"
        if lowest is None
        else f"which needs a flowengine of revision 9998 or later, and this one is of {HEAD}: a "
        "newer version removed from it something that this one uses"
    )
    assert str(caught.value) == (
        f"the database {database.name} has schema revision '9999', {why}; upgrade flowengine here "
        "too"
    )
    with pytest.raises(DatabaseTooNew):
        upgrade_schema(database)
    with database.read() as session:
        connection = session.connection
        assert revision_of(connection) == "9999"


def test_a_database_that_is_refused_keeps_no_connection(database: Database) -> None:
    upgrade_schema(database)
    set_revision(database, "9999")
    set_lowest(database, 9998)
    database.close()
    made: list[Any] = []
    closed: list[Any] = []
    event.listen(database.engine, "connect", lambda connection, _: made.append(connection))
    event.listen(database.engine, "close", lambda connection, _: closed.append(connection))
    with pytest.raises(DatabaseTooNew):
        ensure_schema(database)
    assert made
    assert {id(each) for each in closed} == {id(each) for each in made}


@pytest.mark.parametrize("upgrade", [True, False])
def test_a_newer_database_that_has_only_more_is_used_as_it_is(
    database: Database, empty_database_url: str, upgrade: bool
) -> None:
    column = "ALTER TABLE flowengine_run ADD COLUMN later TEXT"
    newer_schema(database, "9001", int(HEAD), column)
    ensure_schema(database, upgrade=upgrade)
    refuse_newer(database)
    assert upgrade_schema(database) == ("9001", "9001")
    with opened(empty_database_url) as engine:
        engine.start(one(), "Flow", {})
    set_lowest(database, 9001)
    with pytest.raises(DatabaseTooNew):
        refuse_newer(database)


def test_an_upgrade_records_the_oldest_code_that_can_go_on(database: Database) -> None:
    """Whether it makes the tables at once, or by migrations from an older revision."""
    with database.write() as session:
        snapshots.migrate_to(session.connection, "0020")
    assert upgrade_schema(database) == ("0020", HEAD)
    with database.read() as session:
        assert lowest_code(session.connection) == int(LOWEST)
    assert LOWEST in KNOWN
    assert upgrade_schema(database) == (HEAD, HEAD)


def test_postgres_an_upgrade_gives_way_to_transactions_that_work_with_the_tables(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits in no queue for long, and is made when they have ended."""
    url = postgres.new_database()
    database, other = Database(url), Database(url)
    with database.write() as session:
        snapshots.migrate_to(session.connection, KNOWN[-2])
    monkeypatch.setattr("flowengine.store.schema_upgrade.random.uniform", lambda *_: 0.0)
    monkeypatch.setattr("flowengine.store.schema_upgrade._MOST_TRIES", 2)
    with other.write() as session:
        tables = ", ".join(inspect(session.connection).get_table_names())
        session.connection.execute(text(f"LOCK TABLE {tables} IN ROW EXCLUSIVE MODE"))
        with pytest.raises(StoreError, match="other transactions have locked its tables"):
            upgrade_schema(database)
    with database.read() as session:
        assert revision_of(session.connection) == KNOWN[-2]
    assert upgrade_schema(database) == (KNOWN[-2], HEAD)
    database.close()
    other.close()
    postgres.drop_database(url)


@pytest.mark.parametrize("before", ["", "0011", "0020", KNOWN[-2]])
def test_the_printed_sql_makes_the_schema_of_the_upgrade(database: Database, before: str) -> None:
    if before:
        with database.write() as session:
            snapshots.migrate_to(session.connection, before)
    printed = upgrade_sql(database.engine.dialect, before)
    assert printed.count("BEGIN;") == printed.count("COMMIT;") == 1
    execute_script(database, printed)
    with database.read() as session:
        connection = session.connection
        assert revision_of(connection) == HEAD
        assert lowest_code(connection) == int(LOWEST)
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
    printed_indexes, printed_room = indexes(database), room(database)
    ensure_schema(database, upgrade=False)
    assert upgrade_sql(database.engine.dialect, HEAD) == f"-- revision {HEAD}: nothing to upgrade\n"
    with pytest.raises(StoreError, match="moves rows"):
        upgrade_sql(database.engine.dialect, "0010")
    with pytest.raises(StoreError, match="no schema revision '9999'"):
        upgrade_sql(database.engine.dialect, "9999")
    with database.write() as session:
        metadata.drop_all(session.connection)
        session.connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
    upgrade_schema(database)
    assert (printed_indexes, printed_room) == (indexes(database), room(database))


def test_an_empty_database_is_upgraded_only_where_that_is_allowed(database: Database) -> None:
    with pytest.raises(DatabaseTooOld) as caught:
        ensure_schema(database, upgrade=False)
    assert str(caught.value) == (
        f"the database {database.name} has schema revision 'none', this flowengine needs "
        f"{HEAD!r}: run `flowengine db upgrade`, or `flowengine -A APP db upgrade` if a Celery app "
        "names the database"
    )
    with database.read() as session:
        connection = session.connection
        assert inspect(connection).get_table_names() == []
    ensure_schema(database, upgrade=True)


def test_an_older_database_is_upgraded_only_where_that_is_allowed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade_schema(database)
    with monkeypatch.context() as later:
        later.setattr("flowengine.store.schema_upgrade.HEAD", "0999")
        later.setattr("flowengine.store.schema_upgrade.KNOWN", (*KNOWN, "0999"))
        with pytest.raises(DatabaseTooOld, match=f"'{HEAD}', this flowengine needs '0999'"):
            ensure_schema(database, upgrade=False)


def test_a_password_is_not_shown() -> None:
    database = Database("postgresql://user:secret@nowhere/flow")
    assert "secret" not in database.name
    assert "secret" not in str(DatabaseTooNew(database.name, "9999"))
    database.close()


def use(url: str) -> None:
    with opened(url) as engine:
        engine.start(one(), "Flow", {})


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "flow.db"
    path.parent.mkdir()
    use(f"sqlite:///{path}")
    return path


def test_sqlite_a_read_only_file_is_explained(sqlite_file: Path) -> None:
    with pytest.raises(DatabaseReadOnly, match="cannot be written: give this user write"):
        use(f"sqlite:///file:{sqlite_file}?mode=ro&uri=true")


def test_sqlite_a_read_only_file_of_no_schema_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(DatabaseReadOnly, match="cannot be written"):
        use(f"sqlite:///file:{path}?mode=ro&uri=true")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_sqlite_a_file_without_write_permission_is_explained(sqlite_file: Path) -> None:
    sqlite_file.chmod(0o400)
    sqlite_file.parent.chmod(0o500)
    try:
        with pytest.raises(DatabaseReadOnly, match="cannot be written"):
            use(f"sqlite:///{sqlite_file}")
    finally:
        sqlite_file.parent.chmod(0o700)


def test_sqlite_a_read_only_file_can_still_be_looked_at(sqlite_file: Path) -> None:
    database = Database(f"sqlite:///file:{sqlite_file}?mode=ro&uri=true")
    ensure_schema(database, upgrade=True)
    with database.read() as session:
        connection = session.connection
        assert connection.scalar(text("SELECT count(*) FROM flowengine_run")) == 1
    database.close()


def test_postgres_a_read_only_database_is_explained(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    use(url)
    with pytest.raises(DatabaseReadOnly, match="cannot be written"):
        use(f"{url}&options=-c%20default_transaction_read_only%3Don")
    postgres.drop_database(url)


@pytest.mark.parametrize("place", ["nowhere/flow.db", "."])
def test_sqlite_a_file_that_cannot_be_opened_is_explained(tmp_path: Path, place: str) -> None:
    with pytest.raises(StoreError, match="cannot be opened: does its directory exist"):
        use(f"sqlite:///{tmp_path}/{place}")


def test_sqlite_a_file_that_is_no_database_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("This is not a database. " * 100)
    with pytest.raises(StoreError, match="is not a database"):
        use(f"sqlite:///{path}")


def test_a_kind_of_database_we_do_not_support_is_named() -> None:
    with pytest.raises(StoreError, match="in sqlite or postgresql, not in 'mysql'"):
        Database("mysql+pymysql://user@localhost/flow")
