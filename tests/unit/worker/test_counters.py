"""Counters are flushed once, and kept while they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.store import Database, servers
from flowengine.store.servers import HandledCount
from flowengine.worker.counters import HandledCounters
from tests.unit.worker.claims import task


def test_counts_that_were_not_flushed_are_added_to_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[HandledCount] = []
    monkeypatch.setattr(servers, "count", lambda _c, _server, counts: flushed.extend(counts))
    database = Database(f"sqlite:///{tmp_path}/flow.db")
    counters = HandledCounters(database, "server")
    counters.count(task("f"), Succeeded({}))
    with monkeypatch.context() as unreachable:
        unreachable.setattr(servers, "count", lambda *_given: 1 / 0)
        counters.flush()
    counters.count(task("f"), Succeeded({}))
    counters.count(task("f"), Failed({}))
    counters.flush()
    counters.flush()
    database.close()
    assert [(c.handler, c.handled, c.not_handled) for c in flushed] == [("f", 2, 1)]
