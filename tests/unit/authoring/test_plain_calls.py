"""A worker runs an event facet: JSON in, JSON out."""

from __future__ import annotations

import asyncio
import datetime
import pickle
from collections.abc import Awaitable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import pydantic
import pytest

from flowengine.authoring import event_facet, json_value
from flowengine.errors import DoesNotFit, NotJson
from tests.registries import empty_registry


class Line(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    price: Decimal
    day: datetime.date


class Open(pydantic.BaseModel):
    data: Any


@dataclass
class Order:
    lines: list[Line]


class Colour(str, Enum):  # noqa: UP042 - prints itself as "Colour.RED"
    RED = "red"


def _run(fn: Any, **data: Any) -> Any:
    with empty_registry():
        return event_facet(name="t.fn")(fn).run(data)["result"]


def test_arguments_are_deserialized_by_their_annotations() -> None:
    def fn(order: Order, when: datetime.datetime, /, ids: set[int], *, deep: bool = True) -> str:
        assert isinstance(order.lines[0], Line)
        assert when.year == 2026
        assert ids == {1, 2}
        return f"{order.lines[0].price} {deep}"

    line = {"price": "1.50", "day": "2026-01-02"}
    assert (
        _run(fn, order={"lines": [line]}, when="2026-01-02T03:04:05Z", ids=[1, "2"]) == "1.50 True"
    )


def test_results_are_serialized_to_json() -> None:
    def fn() -> Order:
        return Order([Line(price=Decimal("1.50"), day=datetime.date(2026, 1, 2))])

    assert _run(fn) == {"lines": [{"price": "1.50", "day": "2026-01-02"}]}


def test_a_result_is_coerced_to_its_annotation() -> None:
    def fn() -> dict[int, float]:
        return {1: 2}

    assert _run(fn) == {"1": 2.0}


def test_async_functions_run_to_completion() -> None:
    async def fn(a: int) -> int:
        await asyncio.sleep(0)
        return a + 1

    def later(a: int) -> Awaitable[int]:
        return fn(a)

    assert _run(fn, a=1) == 2
    assert event_facet(name="t.later")(later).run({"a": 1}) == {"result": 2}


def test_an_async_facet_called_as_plain_python_returns_its_result() -> None:
    @event_facet(name="t.fn")
    async def fn(a: int) -> int:
        return a + 1

    async def inside_a_loop() -> Any:
        return await fn.fn(1) + await fn(1)  # type: ignore[misc]

    assert fn(1) == 2
    assert asyncio.run(inside_a_loop()) == 4


def test_all_invalid_arguments_are_reported() -> None:
    def fn(a: int, b: str, c: list[int]) -> None: ...

    with pytest.raises(DoesNotFit) as raised:
        _run(fn, a="x", c=[1, "y"], d=1)
    assert raised.match(r"event facet 't.fn': 'd' is unknown; 'a' should be int, was 'x' \(str\)")
    assert raised.match(r"'b' \(str\) is missing; 'c' should be list\[int\].*\[1\]: Input")
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_an_invalid_result_is_reported() -> None:
    def fn() -> int:
        return "many"  # type: ignore[return-value]

    with pytest.raises(DoesNotFit, match=r"'t\.fn': 'result' should be int, was 'many'"):
        _run(fn)


@pytest.mark.parametrize(
    ("value", "where", "type_name"),
    [
        (object(), "result", "object"),
        ({"a": [object()]}, r"result\['a'\]\[0\]", "object"),
        (float("nan"), "result", r"number JSON does not have \(nan\)"),
        ({"a": (1, float("inf"))}, r"result\['a'\]\[1\]", "number"),
        ({1: 2}, "result", "dict with the key 1, a int and not text"),
        ({"a": {None: 2}}, r"result\['a'\]", "dict with the key None"),
        ({1, 2}, "result", "set"),
        (b"x", "result", "bytes"),
        ("\ud800", "result", "text with a lone surrogate"),
    ],
)
def test_a_value_without_json_form_is_reported_with_its_place(
    value: Any, where: str, type_name: str
) -> None:
    def untyped():  # type: ignore[no-untyped-def]
        return value

    def model() -> Open:
        return Open(data=value)

    message = f"the result of event facet 't.fn' is not JSON: {where} is of type {type_name}"
    with pytest.raises(NotJson, match=message):
        _run(untyped)
    if not isinstance(value, set | bytes | dict):  # a declared type says how to write these
        place = where.replace("result", r"result\['data'\]")
        with pytest.raises(NotJson, match=f"{place} is of"):
            _run(model)


def test_a_structure_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotJson, match="structure that contains itself"):
        json_value(endless, "it")


def test_json_value_makes_plain_copies() -> None:
    class Name(str):
        def __str__(self) -> str:
            return "wrong"

    inner = {"a": (1, 2.5, True, None)}
    found = json_value([inner, Colour.RED, Name("n"), datetime.date(2026, 1, 2)], "it")
    assert found == [{"a": [1, 2.5, True, None]}, "red", "n", "2026-01-02"]
    assert [type(item) for item in found] == [dict, str, str, str]
    assert json_value(Order([]), "it") == {"lines": []}


def test_an_exception_of_the_function_is_raised() -> None:
    def fn() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        _run(fn)
