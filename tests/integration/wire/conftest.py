from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowengine.engine import Engine
from flowengine.settings import Settings
from tests.integration.engines import opened
from tests.integration.wire.clients import Client, Wire


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    settings = Settings(spool_directory=str(tmp_path / "spool"), max_wrong_tokens=1000)
    with opened(database_url, settings=settings) as engine:
        yield engine


@pytest.fixture
def wire(engine: Engine) -> Iterator[Wire]:
    with Wire(engine) as wire:
        yield wire


@pytest.fixture
def client(wire: Wire) -> Client:
    """A client that may do everything."""
    return wire.client("all", ["claim", "start", "read", "admin"])
