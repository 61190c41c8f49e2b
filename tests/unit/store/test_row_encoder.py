"""What the rows of a commit share is written once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowengine.store.commits import CommitRows
from flowengine.store.postgres import row_encoder


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"new_events": ("run_id", "id", "step_id", "event_type", "created")}
    monkeypatch.setattr(row_encoder, "COLUMNS", found)


def events(count: int) -> list[dict[str, Any]]:
    return [
        {"run_id": "r", "id": f"e{n}", "step_id": None, "event_type": "f", "created": 7}
        for n in range(count)
    ]


def test_of_many_rows_what_they_share_stands_apart_and_nothing_is_said_of_what_is_missing() -> None:
    shared, own = row_encoder._written("new_events", events(20))
    assert json.loads(shared) == {"run_id": "r", "event_type": "f", "created": 7}
    assert json.loads(own) == [{"id": f"e{n}"} for n in range(20)]


def test_rows_that_differ_in_one_of_these_columns_are_written_whole() -> None:
    rows = events(20)
    rows[19]["created"] = 8
    (whole,) = row_encoder._written("new_events", rows)
    assert json.loads(whole) == rows


def test_a_few_rows_are_written_whole() -> None:
    (whole,) = row_encoder._written("new_events", events(2))
    assert json.loads(whole) == events(2)


def test_nothing_of_a_kind_is_not_written_out_where_the_column_cannot_be_empty() -> None:
    rows = [{**event, "step_id": ""} for event in events(20)]
    _, own = row_encoder._written("new_events", rows)
    assert json.loads(own) == [{"id": f"e{n}"} for n in range(20)]
    assert "COALESCE(x.\"step_id\", '')" in row_encoder.read(
        row_encoder.Section("new_events", is_apart=True)
    )


def test_a_few_rows_of_one_run_are_given_value_by_value() -> None:
    rows = CommitRows(new_events=events(2))
    sections, values = row_encoder.give(rows, is_alone=True)
    assert sections == (row_encoder.Section("new_events", 2),)
    assert values == ["r", "e0", None, "f", "7", "r", "e1", None, "f", "7"]
    assert row_encoder.give(rows, is_alone=False)[0] == (row_encoder.Section("new_events"),)
