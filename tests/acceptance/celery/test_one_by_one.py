"""The levers of speed can be turned off."""

from __future__ import annotations

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet


def test_without_batches_and_continuation_everything_goes_one_by_one(
    make_fleet: MakeFleet,
) -> None:
    fleet = make_fleet(FLOWENGINE_BATCH="1", FLOWENGINE_CONTINUATION="off")
    fleet.add_worker("one-by-one", *QUICK_START)
    fleet.add_beat()
    assert fleet.start(graphs.short_chain, n=1).result(timeout=30) == 1
    run = fleet.start(graphs.touched, holds=-1, kills=-1)
    assert run.result(timeout=60) == list(range(40))
