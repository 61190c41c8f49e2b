"""Task ids in a message."""

from __future__ import annotations

from flowengine.dispatch.notifier import MOST, WIDE, batches
from flowengine.dispatch.packed_ids import packed, unpacked
from flowengine.evaluator.records import derived_id, id_within


def test_ids_of_a_run_come_out_as_they_went_in() -> None:
    run = derived_id("a run")
    ids = [id_within(id_within(run, n), 1, 0) for n in range(MOST)]
    parcel = packed(ids)
    assert unpacked(parcel) == ids
    assert len(parcel) < 14 * MOST


def test_ids_of_a_run_with_a_short_name_too() -> None:
    ids = [id_within("r:1", n) for n in range(3)]
    assert unpacked(packed(ids)) == ids


def test_a_chord_has_a_message_for_everybody_before_its_messages_grow() -> None:
    def sizes(width: int) -> list[int]:
        return [len(batch) for batch in batches([str(n) for n in range(width)])]

    assert sizes(WIDE + 1) == [WIDE, 1]
    assert sizes(440) == [55] * 8
    assert sizes(1_000) == [MOST] * 8
    assert sizes(5_000) == [MOST] * 40
