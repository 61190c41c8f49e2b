"""Canvases as plain values: their shape, their constants, and the program of a shape."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.authoring import event_facet
from flowengine.authoring.canvas import (
    ChainPart,
    Errback,
    GroupPart,
    MapPart,
    Part,
    TaskPart,
    shape_of,
    workflow_of,
)
from flowengine.errors import CanvasRefused, Problem
from flowengine.program.linker import link_program
from flowengine.program.nodes import StepStatement
from flowengine.program.serializer import program_hash
from tests.registries import empty_registry
from tests.unit.authoring.compiled import block, steps


@pytest.fixture(autouse=True)
def _facets() -> Iterator[None]:
    with empty_registry():

        @event_facet(name="shop.price")
        def price(item: str, count: int = 1) -> int:
            return count

        @event_facet(name="shop.add_up")
        def add_up(prices: list[int], *, discount: int = 0) -> int:
            return sum(prices) - discount

        @event_facet(name="shop.note")
        def note(value: Any = None, /, what: str = "") -> None: ...

        yield


def price(item: str, **options: Any) -> TaskPart:
    return TaskPart("shop.price", (item,), **options)


ADD_UP = TaskPart("shop.add_up")
NOTE = TaskPart("shop.note", kwargs={"what": "done"}, immutable=True)


def statements(part: Part) -> list[StepStatement]:
    return steps(block(made(part)))


def made(part: Part) -> Any:
    shape, inputs = shape_of(part)
    return workflow_of(shape, tuple(inputs))


def hash_of(part: Part) -> str:
    program = made(part).program()
    link_program(program)  # raises for a program that no engine would take
    return program_hash(program)


def test_constants_are_inputs_with_the_names_of_their_parameters() -> None:
    part = ChainPart((price("cup"), TaskPart("shop.note", kwargs={"what": "paid"}), NOTE))
    shape, inputs = shape_of(part)
    assert inputs == {"price_item": "cup", "note_what": "paid", "note_what_2": "done"}
    assert shape_of(part)[0] == shape
    first, second, third = statements(part)
    assert [s.name for s in (first, second, third)] == ["price", "note", "note_2"]
    assert [argument.name for argument in second.call.arguments] == ["value", "what"]
    assert second.after == ()
    assert [after.step for after in third.after] == ["note"], "an order, and no argument"


@given(items=st.lists(st.text(), min_size=2, max_size=30), others=st.lists(st.text(), min_size=1))
def test_members_of_one_shape_are_one_loop_however_many_they_are(
    items: list[str], others: list[str]
) -> None:
    def order(names: list[str]) -> Part:
        return ChainPart((GroupPart(tuple(price(name) for name in names)), ADD_UP))

    assert hash_of(order(items)) == hash_of(order(others))
    assert shape_of(order(items))[1] == {"price_items": items}


def test_members_of_several_kinds_keep_their_order() -> None:
    members = (price("a"), price("b"), NOTE, price("c", countdown=1.0))
    _, inputs = shape_of(GroupPart(members))
    assert inputs == {
        "price_items": ["a", "b"],
        "note_what": "done",
        "price_countdown": 1.0,
        "price_item": "c",
    }
    assert len(statements(GroupPart(members))) == 4, "a loop, two steps and a sleep"


def test_a_shape_differs_by_task_order_arguments_and_options_and_not_by_values() -> None:
    moment = datetime.datetime(2031, 5, 1, tzinfo=datetime.UTC)
    parts: list[Part] = [
        price("a"),
        TaskPart("shop.price", ("a", 2)),
        price("a", countdown=1.0),
        price("a", eta=moment),
        price("a", expires=5.0),
        price("a", links=(NOTE,)),
        price("a", errbacks=(Errback("shop.note", immutable=True),)),
        GroupPart((price("a"),)),
        ChainPart((price("a"), NOTE)),
        ChainPart((NOTE, price("a", immutable=True))),
        MapPart("shop.price", (("a",), ("b",))),
    ]
    assert len({hash_of(part) for part in parts}) == len(parts)
    assert hash_of(price("a", countdown=1.0)) == hash_of(price("b", countdown=2.0))
    assert hash_of(price("a", expires=5.0)) != hash_of(price("a", expires=6.0))


def test_every_problem_is_in_one_error_with_its_place_and_each_once() -> None:
    part = ChainPart(
        (
            GroupPart(tuple(TaskPart("shop.gone", place=f"group[{n}]") for n in range(1_000))),
            TaskPart("shop.add_up", kwargs={"rebate": 1}, place="body"),
            price("cup", immutable=True, links=(TaskPart("shop.price", (1, 2), place="link"),)),
        )
    )
    with pytest.raises(CanvasRefused) as refused:
        shape_of(part, [Problem("elsewhere", "no")])
    assert [str(problem).partition(":")[0] for problem in refused.value.problems] == [
        "elsewhere",
        "group[0] and 999 more",
        "body",
        "link",
    ]
    assert "'rebate' is unknown" in str(refused.value)


def test_items_of_a_map_have_the_same_number_of_arguments() -> None:
    with pytest.raises(CanvasRefused, match="different numbers of arguments"):
        shape_of(MapPart("shop.price", (("a",), ("a", 2))))


def test_a_name_is_derived_from_the_ends_of_a_canvas_unless_it_is_given() -> None:
    shape, inputs = shape_of(ChainPart((price("a"), NOTE)))
    assert workflow_of(shape, tuple(inputs)).name.startswith("canvas.price_to_note_")
    assert workflow_of(shape, tuple(inputs), "shop.order").name == "shop.order"
