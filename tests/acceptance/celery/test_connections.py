"""A worker opens no more connections to PostgreSQL than docs/operations.md says."""

from __future__ import annotations

import psycopg
import pytest

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes import until
from tests.servers import PostgresServer

MAIN, BACKGROUND = 3, 2  #: of the main process; of a process that runs steps, beside its steps


@pytest.mark.parametrize(
    ("args", "most"),
    [
        (["--concurrency=1"], MAIN + (1 + BACKGROUND)),
        (["--concurrency=4"], MAIN + 4 * (1 + BACKGROUND)),
        (["--concurrency=4", "--pool=threads"], MAIN + 4 + BACKGROUND),
    ],
    ids=["prefork 1", "prefork 4", "threads 4"],
)
def test_a_worker_keeps_to_its_number_of_connections(
    make_fleet: MakeFleet, postgres: PostgresServer, args: list[str], most: int
) -> None:
    fleet = make_fleet()
    name = fleet.database_url.partition("?")[0].rpartition("/")[2]
    worker = fleet.add_worker("counted", *QUICK_START, *args)
    for run in [fleet.start(graphs.mixed, n=n) for n in range(6)]:
        until(lambda: run.info().state == "COMPLETED", "its end", seconds=60)  # noqa: B023
    fleet.engine.database.engine.dispose()  # the client's own
    with psycopg.connect(
        postgres.url.replace("postgresql+psycopg", "postgresql"), autocommit=True
    ) as connection:
        query = "SELECT application_name FROM pg_stat_activity WHERE datname = %s"
        found = [row[0] for row in connection.execute(query, [name])]
    worker.stop()
    print(args, len(found))
    assert MAIN < len(found) <= most
    assert found.count("flowengine-lock") == 1
