from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowengine.engine import Engine
from flowengine.settings import Settings
from tests.integration.engines import opened
from tests.integration.wire.clients import Client, Wire


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with our tables: a copy is there sooner than the tables are made."""
    file = tmp_path_factory.mktemp("wire") / "flow.db"
    with opened(f"sqlite:///{file}"):
        return file


@pytest.fixture
def url(empty_file: Path, tmp_path: Path) -> str:
    """One database for most tests; `test_tasks` has both, `test_openapi` PostgreSQL."""
    shutil.copy(empty_file, tmp_path / "flow.db")
    return f"sqlite:///{tmp_path}/flow.db"


@pytest.fixture
def engine(url: str, tmp_path: Path) -> Iterator[Engine]:
    settings = Settings(spool_directory=str(tmp_path / "spool"), max_wrong_tokens=1000)
    with opened(url, settings=settings) as engine:
        yield engine


@pytest.fixture
def wire(engine: Engine) -> Iterator[Wire]:
    with Wire(engine) as wire:
        yield wire


@pytest.fixture
def client(wire: Wire) -> Client:
    """A client that may do everything."""
    return wire.client("all", ["claim", "start", "read", "admin"])
