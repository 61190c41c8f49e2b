"""Records and their rows: each field that has a column is written and read."""

from __future__ import annotations

from dataclasses import fields

from flowengine.evaluator import Step, TaskDefinition, TaskState
from flowengine.store import codec, records
from flowengine.store.commit_rows import SECTIONS


def test_a_step_is_read_as_it_was_written() -> None:
    step = Step(
        *("i", "r", "k", "path", "type", "address", "p", 3),
        generation=1,
        facet_name="f",
        state="s",
        params={"a": 1},
        returns={"b": [2]},
        error={"type": "E"},
        waiting=4,
        remaining=5,
        item_count=6,
        next_index=7,
        failure={"path": "x"},
        yields=[(1, {"y": 2})],
        created=8,
        updated=9,
    )
    row = records.new_step_row(step, codec.Encoder())
    assert len(row) == len(records.STEP_COLUMNS)
    assert records.step_from(row) == step


def test_parameters_that_did_not_change_are_not_written_again() -> None:
    step = Step("i", "r", "k", "path", "type", "address", None, 0, params={"a": 1})
    place = records.STEP_UPDATE_COLUMNS.index("params")
    for has_new, written in ((True, '{"a":1}'), (False, None)):
        row = records.updated_step_row(step, codec.Encoder(), has_new_params=has_new)
        assert row[place] == written


def test_a_task_is_read_as_it_was_written() -> None:
    task = TaskDefinition(
        *("u", "shop.Charge", "server", "r", "p", "s"),
        state=TaskState.RUNNING,
        created=1,
        updated=2,
        task_list_name="slow",
        data_type="d",
        data={"x": 1},
        step_key="k",
        step_path="path",
        try_number=2,
        losses=1,
        lease=3,
        due=4,
        rank=-5,
        position=6,
        timeout_ms=7,
        boot_id="b",
        pid=8,
        runs_once=True,
        circuit="bank",
        join_id="j",
    )
    row = records.new_task_row(task)
    named = dict(zip(records.NEW_TASK_COLUMNS, row, strict=True))
    assert (named["short_name"], named["started"], named["rank"]) == ("Charge", 2, -5)
    assert records.task_from(row, {"x": 1}) == task


def test_every_stored_field_of_a_task_has_a_column() -> None:
    assert len(records.TASK_COLUMNS) == len(fields(TaskDefinition)) - 2  # without data and join


def test_columns_of_a_section_exist_or_guard_it() -> None:
    extra = {"run_id", "expected_revision", "reports", "to_run"}
    for section in SECTIONS.values():
        assert set(section.columns) - extra <= set(section.table.c.keys())
