"""A fleet whose database a newer flowengine upgrades: with a schema that has more, or less.

The newer version is this package with one migration more, applied by its own upgrade.
"""

from __future__ import annotations

import os
import signal

import pytest
from celery import Celery
from sqlalchemy import text

from flowengine.celery import FlowEngine
from flowengine.errors import DatabaseTooNew
from flowengine.settings import Settings
from flowengine.store import Database, migrations, schema_upgrade, upgrade_schema
from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.acceptance.celery.mixed_load import start_mixed, wait_and_check
from tests.acceptance.celery.rows import ended
from tests.celery_nodes import Fleet, until
from tests.celery_nodes.fleet import client_of

NEWER = "9001"


def upgrade_by_newer(
    fleet: Fleet, patch: pytest.MonkeyPatch, revision: str, lowest: str, *statements: str
) -> None:
    """Do what `flowengine db upgrade` of a newer version does."""

    def migrate(connection: object) -> None:
        for statement in statements:
            connection.execute(text(statement))  # type: ignore[attr-defined]
        set_version = f"UPDATE {migrations.VERSION_TABLE} SET version_num = '{revision}'"
        connection.execute(text(set_version))  # type: ignore[attr-defined]

    with patch.context() as newer:
        newer.setattr(schema_upgrade, "HEAD", revision)
        newer.setattr(schema_upgrade, "KNOWN", (*migrations.KNOWN, NEWER, revision))
        newer.setattr(schema_upgrade, "LOWEST", lowest)
        newer.setattr(schema_upgrade, "migrate", migrate)
        database = Database(fleet.database_url)
        assert upgrade_schema(database)[1] == revision
        database.close()


def fleet_of_two(make_fleet: MakeFleet) -> Fleet:
    fleet = make_fleet()
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, wait=False)
    fleet.add_beat()
    fleet.heal()
    return fleet


def test_old_workers_and_their_replaced_children_go_on_beside_a_schema_that_has_more(
    make_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = fleet_of_two(make_fleet)
    runs = start_mixed(fleet, 8)
    handles = [fleet.engine.run(run_id) for run_id in runs]
    until(lambda: ended(fleet.engine, handles) >= 2, "the first of the runs", seconds=120)
    upgrade_by_newer(
        *(fleet, monkeypatch, NEWER, migrations.HEAD),
        "ALTER TABLE flowengine_run ADD COLUMN later TEXT",
        "ALTER TABLE flowengine_task ADD COLUMN later BIGINT DEFAULT 7 NOT NULL",
        "CREATE TABLE flowengine_later (id VARCHAR(32) PRIMARY KEY)",
        "CREATE INDEX flowengine_run_later ON flowengine_run (later)",
    )
    first, second = fleet.workers
    before = set(first.children())
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    second.kill()
    second.start(wait=False)  # old code, which has never seen this schema
    until(lambda: len(set(first.children()) - before) >= len(before), "new pool children")
    runs |= start_mixed(fleet, 2)  # a client that was there before
    app, engine = client_of(fleet.environment)  # and one that starts now
    runs[engine.start(graphs.mixed.program(), graphs.mixed.name, {"n": 5}).id] = graphs.expected(5)
    engine.close()
    app.close()
    counters = wait_and_check(fleet, runs, 90)
    assert counters.failed == 0
    second.wait_until_ready()
    assert "DatabaseTooNew" not in fleet.logs()
    assert not fleet.count_logged("has schema revision")
    for node in fleet.nodes:  # the next fleet has the same broker
        node.stop()


def test_workers_say_that_a_schema_has_less_than_they_need_and_leave_their_work_to_newer_ones(
    make_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = fleet_of_two(make_fleet)
    held = fleet.start(graphs.held_then_added, name="bridge")
    until(lambda: fleet.begun("bridge"), "the start of the step")
    runs = start_mixed(fleet, 3)
    column = "ALTER TABLE flowengine_run RENAME COLUMN labels TO tags"
    upgrade_by_newer(fleet, monkeypatch, NEWER, NEWER, column)
    fleet.let_go("bridge")
    first, second = fleet.workers
    assert [first.wait(60), second.wait(60)] == [1, 1]
    why = f"which needs a flowengine of revision {NEWER} or later"
    for worker in fleet.workers:
        (line,) = [line for line in worker.logs().splitlines() if "cannot go on" in line]
        assert why in line
        assert "upgrade flowengine here too" in line
        assert "ERROR" in line
    first.start(wait=False)
    assert first.wait(60) != 0
    assert why in first.process.recent_log()
    app = Celery("client", broker=fleet.broker.url, set_as_current=False)
    with pytest.raises(DatabaseTooNew, match=why):
        FlowEngine(app, settings=Settings.from_environment(fleet.environment)).engine  # noqa: B018
    app.close()
    with fleet.engine.database.write() as session:  # newer workers come
        for statement in (
            "ALTER TABLE flowengine_run RENAME COLUMN tags TO labels",
            f"UPDATE {migrations.VERSION_TABLE} SET version_num = '{migrations.HEAD}'",
            "DELETE FROM flowengine_counter",
        ):
            session.connection.execute(text(statement))
    fleet.heal()
    wait_and_check(fleet, runs, 60)
    assert held.result(timeout=30)
