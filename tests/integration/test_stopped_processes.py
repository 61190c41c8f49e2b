"""A process that stops in the middle of a transaction does not hold up the others for ever."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from flowengine.store import Database, ensure_schema
from flowengine.store.postgres import database
from tests.servers import PostgresServer


def test_the_server_ends_a_transaction_that_stands_still(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_IDLE_LIMIT", 0.3)
    url = postgres.new_database()
    stopped, other = Database(url), Database(url)
    ensure_schema(other, upgrade=True)

    def stand_still() -> None:
        with stopped.write() as session:
            assert session.locks.acquire("watchdog", "stopped", 1000, 0)
            with other.write() as session:  # waits for the row, and gets it
                assert session.locks.acquire("watchdog", "other", 1000, 0)

    with pytest.raises(DBAPIError):
        stand_still()
    stopped.close()
    other.close()
    postgres.drop_database(url)


def test_every_transaction_reports_a_missing_server_alike(postgres: PostgresServer) -> None:
    nowhere = Database("postgresql+psycopg://nobody@/none?host=/nonexistent&connect_timeout=1")
    for way in (nowhere.autocommit, nowhere.autocommit_read, nowhere.read, nowhere.write):
        with pytest.raises(OperationalError), way():  # type: ignore[operator]
            pass
