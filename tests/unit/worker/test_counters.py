"""Counters are flushed once, and kept while they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.store import Database, ensure_schema
from flowengine.worker.background import HandledCounters
from tests.unit.worker.claims import task


def test_counts_that_were_not_flushed_are_kept_for_the_next_flush(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(f"sqlite:///{tmp_path}/flow.db")
    counters = HandledCounters(database, "server")
    counters.count(task("f"), Succeeded({}))
    with caplog.at_level("DEBUG", logger="flowengine"):
        counters.flush()  # there is no table yet
    assert "counters were not flushed" in caplog.text
    counters.count(task("f"), Succeeded({}))
    counters.count(task("f"), Failed({}))
    assert counters._counts == {("f", True): 2, ("f", False): 1}
    ensure_schema(database, upgrade=True)
    counters.flush()
    assert counters._counts == {}
    database.close()
