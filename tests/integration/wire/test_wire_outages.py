"""The wire protocol while PostgreSQL refuses connections: 503, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowengine.engine import Engine
from flowengine.settings import Settings
from tests.integration.engines import opened
from tests.integration.sdk.pollers import WAIT
from tests.integration.test_outages import accept_connections, refuse_connections
from tests.integration.wire.clients import Client, Wire
from tests.integration.wire.test_tasks import in_background, start, until, waiting
from tests.servers import PostgresServer


@pytest.fixture
def engine(postgres: PostgresServer, with_schema: str, tmp_path: Path) -> Iterator[Engine]:
    url = postgres.new_database(with_schema)
    with opened(url, settings=Settings(spool_directory=str(tmp_path))) as engine:
        yield engine
        accept_connections(engine.database)
    postgres.drop_database(url)


def test_requests_during_an_outage_are_answered_with_503_and_may_be_repeated(
    engine: Engine, wire: Wire, client: Client
) -> None:
    run = start(engine)
    client.register()
    (task,) = client.claim()
    waiter, answers = in_background(
        lambda: client.ask(
            "POST", "/v1/tasks/claim", {"server_id": client.server_id, "wait_seconds": WAIT}
        )
    )
    until(lambda: waiting(wire) == 1)
    refuse_connections(engine.database)
    status, answer = client.report(task, "continue", result={"y": 3})
    assert (status, answer["error"]["code"]) == (503, "database_unavailable")
    wire.server._operations.claims.wake("default", 1)
    waiter.join(WAIT)
    assert [status for status, _ in answers] == [503]
    accept_connections(engine.database)
    status, answer = client.report(task, "continue", result={"y": 3})
    assert (status, answer["duplicate"]) == (200, False)
    assert run.result(timeout=WAIT) == {"y": 3}
