from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.agents.clerks import Office, office
from tests.servers import PostgresServer

BELLS = ("heard", "lost", "doubled", "joined")


@pytest.fixture
def desk(database_url: str) -> Iterator[Office]:
    """An office on each kind of database, whose bells are heard."""
    with office(database_url) as made:
        yield made


_LONG = ["sqlite-doubled", *(f"postgresql-{bells}" for bells in BELLS)]
_SHORT = ["sqlite-heard", "sqlite-lost", "sqlite-joined"]
_KINDS = [*_SHORT, *(pytest.param(k, marks=pytest.mark.chaos) for k in _LONG)]


@pytest.fixture(params=_KINDS)
def any_desk(request: pytest.FixtureRequest) -> Iterator[Office]:
    """The same with bells that are heard or lost; in the long run doubled, and on a server."""
    kind, bells = request.param.split("-")
    url = "sqlite://"
    if kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.new_database(request.getfixturevalue("with_schema"))
    with office(url, bells) as made:
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
    """One for promises about PostgreSQL alone."""
    url = postgres.new_database(with_schema)
    with office(url) as desk:
        yield desk
    postgres.drop_database(url)
