from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowengine.settings import Settings
from tests.integration.agents.clerks import Office, office
from tests.servers import PostgresServer

WAKEUPS = ("received", "lost", "doubled", "joined")


@pytest.fixture
def desk(database_url: str) -> Iterator[Office]:
    """An office on each kind of database, whose wake-ups are received."""
    with office(database_url) as made:
        yield made


_LONG = ["sqlite-doubled", *(f"postgresql-{wakeups}" for wakeups in WAKEUPS)]
_SHORT = ["sqlite-received", "sqlite-lost", "sqlite-joined"]
_KINDS = [*_SHORT, *(pytest.param(k, marks=pytest.mark.chaos) for k in _LONG)]


@pytest.fixture(params=_KINDS)
def any_desk(request: pytest.FixtureRequest) -> Iterator[Office]:
    """The same with wake-ups that are received or lost; in the long run doubled, on a server."""
    kind, wakeups = request.param.split("-")
    url = "sqlite://"
    if kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.new_database(request.getfixturevalue("with_schema"))
    with office(url, wakeups) as made:
        yield made
    if kind == "postgresql":
        server.drop_database(url)


@pytest.fixture
def small_desk() -> Iterator[Office]:
    """One for promises in which no database plays a part."""
    with office("sqlite://") as made:
        yield made


@pytest.fixture
def on_server(postgres: PostgresServer, with_schema: str) -> Iterator[Office]:
    """One for promises about PostgreSQL alone. No statement of it depends on the time it takes."""
    url = postgres.new_database(with_schema)
    settings = Settings(heartbeat_interval=3_600, worker_time_slice=60)
    with office(url, settings=settings) as desk:
        yield desk
    postgres.drop_database(url)
