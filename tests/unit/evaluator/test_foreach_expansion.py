"""Foreach: items in order and in portions, a limit, and failed items."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from flowengine.evaluator import RunState, foreach_expansion, working_set
from flowengine.evaluator.failures import MAX_LISTED
from tests.builders import (
    Node,
    block,
    event,
    facet,
    given,
    listed,
    log,
    of,
    op,
    program,
    step,
    to,
    workflow,
)
from tests.unit.evaluator.in_memory_run import MemoryRun

E = event("E", "x", "y")
EACH = step("s", "E", x=given("i"))


def items_of(*statements: Node, **clause: Any) -> Node:
    return block(
        *(statements or (EACH,)),
        yields=[] if statements else [to("W", out=listed(of("s.y")))],
        foreach=("i", given("xs")),
        **clause,
    )


def run_of(*blocks: Node, **inputs: Any) -> MemoryRun:
    return MemoryRun(program(E, workflow("W", list(inputs), "out", *blocks)), inputs)


def under_way(run: MemoryRun) -> list[str]:
    return [task.step_path for task in run.outstanding()]


# --- a limit ---


def test_no_more_items_than_the_limit_are_under_way_and_the_next_begins_when_one_ends() -> None:
    run = run_of(items_of(limit=2), xs=[0, 1, 2, 3])
    assert under_way(run) == ["W[0].s", "W[1].s"]
    run.succeed("W[1].s", y=1)
    assert under_way(run) == ["W[0].s", "W[2].s"]
    run.succeed("W[2].s", y=2)
    run.succeed("W[3].s", y=3)
    assert under_way(run) == ["W[0].s"]
    run.succeed("W[0].s", y=0)
    assert run.outputs == {"out": [0, 1, 2, 3]}


def test_a_failed_item_makes_room_like_any_other() -> None:
    run = run_of(items_of(limit=1), xs=[0, 1])
    run.fail("W[0].s")
    assert under_way(run) == ["W[1].s"]
    run.succeed("W[1].s", y=1)
    assert run.view.state == RunState.FAILED


def test_a_limit_may_be_an_expression() -> None:
    run = run_of(items_of(limit=op(given("n"), "+", 1)), xs=[0, 1, 2, 3, 4], n=2)
    assert len(under_way(run)) == 3


@pytest.mark.parametrize("limit", [0, 1.5, "2", True])
def test_a_limit_that_is_no_count_fails_the_foreach(limit: Any) -> None:
    run = run_of(items_of(limit=given("n")), xs=[1], n=limit)
    assert run.view.state == RunState.FAILED
    assert run.view.error is not None
    assert "limit of a foreach" in run.view.error["message"]


def test_a_limit_above_the_number_of_items_holds_nothing_back() -> None:
    assert len(under_way(run_of(items_of(limit=99), xs=[0, 1, 2]))) == 3


def test_items_that_end_at_once_need_no_second_push() -> None:
    run = run_of(items_of(log(said=given("i")), limit=1), xs=list(range(20)))
    assert run.view.state == RunState.COMPLETED


def test_with_a_limit_too_a_long_list_is_expanded_in_portions() -> None:
    with mock.patch.object(working_set, "PORTION", 3):
        run = run_of(items_of(log(said=given("i")), limit=2), xs=list(range(10)))
        assert run.view.state == RunState.RUNNING
        run.settle()
    assert run.view.state == RunState.COMPLETED


def test_the_list_is_read_once_for_many_items_and_not_for_each() -> None:
    count = 3 * foreach_expansion.AHEAD
    run = run_of(items_of(limit=1), xs=list(range(count)))
    with mock.patch.object(
        foreach_expansion, "_items", side_effect=foreach_expansion._items
    ) as read:
        for index in range(count):
            run.succeed(f"W[{index}].s", y=index)
    assert run.outputs == {"out": list(range(count))}
    assert read.call_count == 2


# --- failed items ---


def test_failed_items_are_reported_and_fail_nothing_when_they_are_collected() -> None:
    run = MemoryRun(
        program(
            E,
            facet(
                "F",
                "xs",
                "ys:[Json]",
                block(
                    EACH,
                    yields=[to("F", ys=listed(of("s.y")))],
                    foreach=("i", given("xs")),
                    collect_errors=True,
                ),
            ),
            workflow(
                "W",
                "xs",
                "out errors",
                block(
                    step("all", "F", xs=given("xs")),
                    yields=[to("W", out=of("all.ys"), errors=of("all.errors"))],
                ),
            ),
        ),
        {"xs": [0, 1, 2, 3]},
    )
    run.fail("W.all[3].s", "three")
    run.succeed("W.all[2].s", y=2)
    run.fail("W.all[1].s", "one")
    run.succeed("W.all[0].s", y=0)
    assert run.outputs == {
        "out": [0, 2],
        "errors": [
            {"index": 1, "type": "Oops", "message": "one", "path": "W.all[1].s"},
            {"index": 3, "type": "Oops", "message": "three", "path": "W.all[3].s"},
        ],
    }


def test_without_a_failure_the_collected_errors_are_an_empty_list() -> None:
    run = run_of(items_of(collect_errors=True), xs=[1])
    run.succeed("W[0].s", y=1)
    assert run.outputs == {"out": [1], "errors": []}
    assert run_of(items_of(collect_errors=True), xs=[]).outputs == {"out": [], "errors": []}


def test_when_every_item_failed_the_collected_list_is_empty() -> None:
    run = run_of(items_of(collect_errors=True), xs=[1])
    run.fail("W[0].s", "no")
    error = {"index": 0, "type": "Oops", "message": "no", "path": "W[0].s"}
    assert run.outputs == {"out": [], "errors": [error]}


def test_a_failed_foreach_lists_its_failed_items_in_item_order() -> None:
    run = run_of(items_of(), xs=[0, 1, 2])
    run.fail("W[2].s", "two")
    run.succeed("W[1].s", y=1)
    run.fail("W[0].s", "zero")
    assert run.view.error == {
        "type": "Oops",
        "message": "zero (2 of 3 items failed: [0] zero; [2] two)",
        "path": "W[0].s",
        "items": [
            {"index": 0, "type": "Oops", "message": "zero", "path": "W[0].s"},
            {"index": 2, "type": "Oops", "message": "two", "path": "W[2].s"},
        ],
        "count": 2,
    }


def test_the_error_of_one_failed_item_is_unchanged() -> None:
    run = run_of(items_of(), xs=[0, 1])
    run.fail("W[1].s", "one")
    run.succeed("W[0].s", y=0)
    assert run.view.error == {"type": "Oops", "message": "one", "path": "W[1].s"}


def test_the_first_of_many_failed_items_are_listed_and_all_are_counted() -> None:
    run = run_of(items_of(), xs=list(range(30)))
    for index in reversed(range(30)):
        run.fail(f"W[{index}].s", "no")
    assert run.view.error is not None
    assert [entry["index"] for entry in run.view.error["items"]] == list(range(MAX_LISTED))
    assert run.view.error["count"] == 30
    assert run.view.error["message"].endswith("; and 20 more)")


# --- items without rows ---


def rows_below(run: MemoryRun) -> set[str]:
    return {row["path"] for row in run.rows.values() if row["path"].startswith("W[")}


def test_an_item_that_is_one_call_has_no_row_but_its_steps() -> None:
    run = run_of(items_of(), xs=[0, 1])
    assert rows_below(run) == {"W[0].s", "W[1].s"}


@pytest.mark.parametrize(
    "body",
    [
        block(EACH, step("t", "E", x=of("s.y")), foreach=("i", given("xs"))),
        block(EACH, yields=[to("W", out=listed(given("i")))], foreach=("i", given("xs"))),
        block(step("s", "P", a=given("i")), foreach=("i", given("xs"))),
        block(step("s", "E", block(step("t", "E", x=1)), x=given("i")), foreach=("i", given("xs"))),
        block(log(said=given("i")), foreach=("i", given("xs"))),
    ],
    ids=["two steps", "a yield of the item", "no event", "a body", "no call"],
)
def test_any_other_item_has_a_row_of_its_own(body: Node) -> None:
    given_program = program(E, facet("P", "a"), workflow("W", ["xs"], "out", body))
    assert "W[0]" in rows_below(MemoryRun(given_program, {"xs": [0]}))


def test_a_virtual_item_yields_to_outer_facets_too() -> None:
    both = to("W", out=listed(op(of("s.y"), "+", given("n"))))
    run = run_of(block(EACH, yields=[both], foreach=("i", given("xs"))), xs=[0, 1], n=10)
    assert rows_below(run) == {"W[0].s", "W[1].s"}
    run.succeed("W[1].s", y=2)
    run.succeed("W[0].s", y=1)
    assert run.outputs == {"out": [11, 12]}


def test_a_yield_that_fails_fails_the_step_that_stands_for_its_item() -> None:
    half = to("W", out=listed(op(1, "/", of("s.y"))))
    body = block(EACH, yields=[half], foreach=("i", given("xs")), collect_errors=True)
    run = run_of(body, xs=[0, 1])
    run.succeed("W[0].s", y=0)
    run.succeed("W[1].s", y=1)
    assert run.outputs is not None
    assert run.outputs["out"] == [1]
    (error,) = run.outputs["errors"]
    assert (error["index"], error["path"]) == (0, "W[0].s")
    assert error["message"].startswith("in its result: ")
