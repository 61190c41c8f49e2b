"""Rows of a commit plan as PostgreSQL is given them."""

from __future__ import annotations

import json

import pytest

from flowengine.store.commit_rows import NewEvent
from flowengine.store.commits import CommitPlan
from flowengine.store.postgres import row_encoder
from flowengine.store.postgres.row_encoder import Encoding, as_json, decode, encode
from flowengine.store.usual_values import USUAL


def events(count: int, step_id: str | None = None) -> list[NewEvent]:
    return [NewEvent("r", f"e{n}", step_id, "f", 7) for n in range(count)]  # type: ignore[arg-type]


def test_columns_that_many_rows_share_are_written_once_and_empty_ones_not_at_all() -> None:
    shared, own = as_json("new_events", events(20))
    assert json.loads(shared) == {"run_id": "r", "event_type": "f", "created": 7}
    assert json.loads(own) == [{"id": f"e{n}"} for n in range(20)]


def test_rows_that_differ_in_a_shared_column_are_written_whole() -> None:
    rows = events(20)
    rows[19] = rows[19]._replace(created=8)
    (whole,) = as_json("new_events", rows)
    assert json.loads(whole) == [row._asdict() for row in rows]


def test_a_few_rows_are_written_whole() -> None:
    (whole,) = as_json("new_events", events(2))
    assert json.loads(whole) == [row._asdict() for row in events(2)]


def test_an_empty_value_of_a_column_that_is_not_nullable_is_left_to_the_decoder() -> None:
    _, own = as_json("new_events", events(20, step_id=""))
    assert json.loads(own) == [{"id": f"e{n}"} for n in range(20)]
    assert "COALESCE(x.\"step_id\", '')" in decode(Encoding("new_events", has_shared=True))


def test_a_few_rows_of_one_run_are_passed_value_by_value() -> None:
    plan = CommitPlan()
    plan.new_events += events(2)
    encodings, values = encode(plan, is_alone=True)
    assert encodings == (Encoding("new_events", 2),)
    assert values == ["r", "e0", None, "f", "7", "r", "e1", None, "f", "7"]
    assert encode(plan, is_alone=False)[0] == (Encoding("new_events"),)


@pytest.mark.parametrize("section", row_encoder._SHARED)
def test_shared_columns_are_columns_of_their_section(section: str) -> None:
    assert set(row_encoder._SHARED[section]) < set(row_encoder.SECTIONS[section].columns)


@pytest.mark.parametrize("section", USUAL)
def test_usual_columns_are_columns_of_their_section(section: str) -> None:
    assert set(USUAL[section]) < set(row_encoder.SECTIONS[section].columns)


def steps(**changes: object) -> list[tuple[object, ...]]:
    """A step as it is updated when it completes, with other values in some columns."""
    columns = row_encoder.SECTIONS["steps"].columns
    usual = dict.fromkeys(columns, "x") | USUAL["steps"] | changes
    return [tuple(usual[column] for column in columns)]


def test_usual_values_are_constants_of_the_statement() -> None:
    plan = CommitPlan()
    plan.steps += steps()
    ((encoding,), values) = encode(plan, is_alone=True)
    assert encoding == Encoding("steps", 1, is_usual=True)
    assert values == ["x"] * (len(steps()[0]) - len(USUAL["steps"]))
    assert 'NULL::text AS "error"' in decode(encoding)
    assert decode(encoding).count("%s") == len(values)


def test_one_unusual_row_has_all_columns_passed() -> None:
    plan = CommitPlan()
    plan.steps += steps() + steps(remaining=2)
    ((encoding,), values) = encode(plan, is_alone=True)
    assert encoding == Encoding("steps", 2)
    assert len(values) == 2 * len(steps()[0])
    assert "2" in values


def test_many_usual_rows_have_the_constants_beside_the_json() -> None:
    plan = CommitPlan()
    plan.steps += steps() * 20
    ((encoding,), (shared, own)) = encode(plan, is_alone=True)
    assert encoding == Encoding("steps", has_shared=True, is_usual=True)
    assert json.loads(shared) == {"run_id": "x", "updated": "x"}
    assert json.loads(own) == [{"id": "x", "state": "x", "returns": "x"}] * 20
    assert '0::INTEGER AS "remaining"' in decode(encoding)
