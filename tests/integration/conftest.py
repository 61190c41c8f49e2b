from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowengine.engine import Engine
from tests.integration.engines import opened
from tests.servers import PostgresServer


@pytest.fixture
def on_postgres(postgres: PostgresServer) -> Iterator[Engine]:
    """An engine for what only PostgreSQL has."""
    url = postgres.new_database()
    with opened(url) as engine:
        yield engine
    postgres.drop_database(url)
