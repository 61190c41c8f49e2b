"""Runs that an earlier version recorded are loaded, evaluated and finished by this one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData

from flowengine.testing import Flow
from tests.histories import snapshots, workflows
from tests.histories.record import FOLDER, end_of
from tests.histories.scenarios import MIDDLES, finish
from tests.servers import PostgresServer, database_name

FILES = sorted(FOLDER.glob("*/*.json"))


def named(file: Path) -> str:
    return f"{file.parent.name}-{file.stem}"


@pytest.fixture(params=FILES, ids=named)
def history(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.param.read_text())
    return found


class Templates:
    """For each kind of database one with the tables of each recorded schema, to be copied."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._request, self._folder = request, folder
        self._made: dict[tuple[str, str], tuple[str, MetaData]] = {}

    @property
    def _server(self) -> PostgresServer:
        server: PostgresServer = self._request.getfixturevalue("postgres")
        return server

    def copy(self, kind: str, schema: str, path: Path) -> tuple[str, MetaData]:
        """Return the address of a new database of that schema, and its tables."""
        if (kind, schema) not in self._made:
            file = f"sqlite:///{self._folder}/{schema}.db"
            url = file if kind == "sqlite" else self._server.new_database()
            self._made[kind, schema] = url, snapshots.create(url, schema)
        url, tables = self._made[kind, schema]
        if kind == "postgresql":
            return self._server.new_database(database_name(url)), tables
        shutil.copy(self._folder / f"{schema}.db", path)
        return f"sqlite:///{path}", tables


@pytest.fixture(scope="module")
def templates(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Templates:
    return Templates(request, tmp_path_factory.mktemp("histories"))


Opener = Callable[[str], Flow]


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(
    request: pytest.FixtureRequest, templates: Templates, history: dict[str, Any], tmp_path: Path
) -> Opener:
    """Return a function that opens a recorded moment of the history in a database of today."""

    def open_at(moment: str) -> Flow:
        snapshot = history[moment]
        url, tables = templates.copy(request.param, history["schema"], tmp_path / "flow.db")
        snapshots.load(url, tables, snapshot["rows"])
        flow = Flow(store_url=url)
        flow.clock.now = snapshot["now"]
        flow._dead.update(snapshot["dead"])
        return flow

    return open_at


def test_a_recorded_run_is_finished_with_the_recorded_end(
    history: dict[str, Any], opened: Opener
) -> None:
    with opened("middle") as flow:
        run = flow.engine.run(history["run"])
        assert not run.info().is_final
        finish(flow, run)
        assert end_of(flow, run) == history["expected"]


def test_a_recorded_end_is_read_and_stays(history: dict[str, Any], opened: Opener) -> None:
    with opened("end") as flow:
        run = flow.engine.run(history["run"])
        revision = run.info().revision
        flow.watchdog()
        assert flow.settle() == 0
        assert end_of(flow, run) == history["expected"]
        assert run.info().revision == revision


def test_every_scenario_is_recorded_and_its_facets_have_code() -> None:
    assert {file.stem for file in FILES} == MIDDLES.keys()
    assert workflows.chain.program()
