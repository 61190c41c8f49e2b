"""Task ids in a message."""

from __future__ import annotations

from flowengine.dispatch.bells import BATCH
from flowengine.dispatch.parcels import packed, unpacked
from flowengine.evaluator.records import derived_id, id_within


def test_ids_of_a_run_come_out_as_they_went_in() -> None:
    run = derived_id("a run")
    ids = [id_within(id_within(run, n), 1, 0) for n in range(BATCH)]
    parcel = packed(ids)
    assert unpacked(parcel) == ids
    assert len(parcel) < 14 * BATCH


def test_ids_of_a_run_with_a_short_name_too() -> None:
    ids = [id_within("r:1", n) for n in range(3)]
    assert unpacked(packed(ids)) == ids
