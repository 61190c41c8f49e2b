"""Drafts of answers: the pieces of a model call, for readers."""

from __future__ import annotations

import json

from flowengine.agents.drafts import Draft, DraftWriter
from flowengine.models import Chunk
from flowengine.program.nodes import Json


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def written(pieces: int, seconds: float, text: str = "x") -> list[Json]:
    """The reports of pieces that come in equal intervals."""
    clock, found = Seconds(), list[Json]()
    writer = DraftWriter(found.append, clock)
    for _ in range(pieces):
        clock.now += seconds / pieces
        writer.add(Chunk("text", text))
    return found


def test_a_quick_answer_is_not_reported() -> None:
    assert written(1000, seconds=0.4) == []


def test_a_slow_answer_is_reported_twice_a_second() -> None:
    found = written(400, seconds=4)
    assert 6 <= len(found) <= 8
    counts = [draft.chunks for each in found if (draft := Draft.of(each)) is not None]
    assert counts == sorted(set(counts))
    assert Draft.of(found[0]) == Draft(counts[0], "x" * counts[0])


def test_only_the_end_of_a_long_text_is_kept() -> None:
    draft = Draft.of(written(400, seconds=4, text="0123456789")[-1])
    assert draft is not None
    assert len(draft.text) == 1_000
    assert draft.text.endswith("789")


def test_thoughts_and_arguments_are_counted_and_not_shown() -> None:
    clock, found = Seconds(), list[Json]()
    writer = DraftWriter(found.append, clock)
    clock.now = 1
    writer.add(Chunk("thinking", "hm"))
    assert Draft.of(found[0]) == Draft(1, "")


def test_the_progress_of_something_else_is_no_draft() -> None:
    assert Draft.of(0.5) is None
    assert Draft.of({"share": 1}) is None


def test_a_text_that_takes_many_bytes_is_cut_to_fit() -> None:
    found = written(400, seconds=4, text="\N{GRINNING FACE}" * 10)
    assert all(len(json.dumps(each)) < 8_000 for each in found)
    draft = Draft.of(found[-1])
    assert draft is not None
    assert draft.text
