"""Runs that an earlier version recorded are loaded, evaluated and finished by this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowengine.testing import Flow
from tests.histories import snapshots, workflows
from tests.histories.record import FOLDER, end_of
from tests.histories.scenarios import MIDDLES, finish

FILES = sorted(FOLDER.glob("*/*.json"))


def named(file: Path) -> str:
    return f"{file.parent.name}-{file.stem}"


@pytest.fixture(params=FILES, ids=named)
def history(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.param.read_text())
    return found


def opened(url: str, history: dict[str, Any], moment: str) -> Flow:
    snapshot = history[moment]
    snapshots.load(url, history["schema"], snapshot["rows"])
    flow = Flow(store_url=url)
    flow.clock.now = snapshot["now"]
    flow._dead.update(snapshot["dead"])
    return flow


def test_a_recorded_run_is_finished_with_the_recorded_end(
    history: dict[str, Any], database_url: str
) -> None:
    with opened(database_url, history, "middle") as flow:
        run = flow.engine.run(history["run"])
        assert not run.info().is_final
        finish(flow, run)
        assert end_of(flow, run) == history["expected"]


def test_a_recorded_end_is_read_and_stays(history: dict[str, Any], database_url: str) -> None:
    with opened(database_url, history, "end") as flow:
        run = flow.engine.run(history["run"])
        revision = run.info().revision
        flow.watchdog()
        assert flow.settle() == 0
        assert end_of(flow, run) == history["expected"]
        assert run.info().revision == revision


def test_every_scenario_is_recorded_and_its_facets_have_code() -> None:
    assert {file.stem for file in FILES} == MIDDLES.keys()
    assert workflows.chain.program()
