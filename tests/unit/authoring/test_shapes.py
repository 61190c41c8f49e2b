"""Annotations of parts: tuples are unpacked, fields resolved, models serialized."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, NamedTuple, NewType

import pydantic
import pytest
from typing_extensions import TypedDict

from flowengine.authoring import event_facet, facet, foreach, workflow
from flowengine.authoring.annotations import Annotation
from flowengine.errors import SymbolMisuse
from flowengine.program.nodes import (
    ArrayLiteral,
    Expression,
    Index,
    InputRef,
    Literal,
    MapLiteral,
    StepRef,
)
from tests.unit.authoring.compiled import block, steps, yielded


class Point(NamedTuple):
    x: int
    day: date


@dataclass
class Box:
    corner: Point
    size: tuple[int, int]


class Note(TypedDict):
    text: str
    pair: tuple[int, int]


class Model(pydantic.BaseModel):
    number: int
    box: Box


Pair = NewType("Pair", tuple[int, str])  # type: ignore[valid-newtype]


@event_facet
def pair(n: int) -> tuple[int, str]:
    return n, "a"


@event_facet
def point() -> Point:
    return Point(1, date(2026, 1, 2))


@event_facet
def model() -> Model:
    return Model(number=1, box=Box(Point(1, date(2026, 1, 2)), (3, 4)))


@event_facet
def notes() -> list[Note]:
    return [{"text": "a", "pair": (1, 2)}]


@event_facet
def use(value: Any) -> Any:
    return value


def items(of: Expression, count: int) -> tuple[Index, ...]:
    return tuple(Index(of, Literal(place)) for place in range(count))


def result(of: str) -> StepRef:
    return StepRef((of, "result"))


def test_a_tuple_is_unpacked() -> None:
    @workflow(name="t.w")
    def w(n: int, given: tuple[str, str]) -> Any:
        number, text = pair(n)
        first, second = given
        return [number, text, first, second]

    expected = (*items(result("pair"), 2), *items(InputRef(("given",)), 2))
    assert yielded(block(w)) == ArrayLiteral(expected)


def test_the_tuple_of_a_plain_facet_is_unpacked() -> None:
    @facet(name="t.both")
    def both(n: int) -> tuple[int, int]:
        return n + 1, n + 2

    @workflow(name="t.w")
    def w(n: int) -> int:
        one, two = both(n)
        return one + two

    assert [s.name for s in steps(block(w))] == ["both"]


@pytest.mark.parametrize(
    "hint",
    [tuple[int, ...], list[int], Any, tuple[int, str] | None, tuple],
)
def test_a_value_of_unknown_length_is_not_unpacked(hint: Any) -> None:
    def some() -> Any: ...

    some.__annotations__["return"] = hint
    facet_of = event_facet(name="t.some")(some)

    def body() -> Any:
        one, two = facet_of()
        return [one, two]

    with pytest.raises(SymbolMisuse, match=r"unpack step 'some'.*\[0\], \[1\], or annotate"):
        workflow(name="t.w")(body).program()


def test_a_field_of_a_named_tuple_is_an_item() -> None:
    @workflow(name="t.w")
    def w(given: Point) -> Any:
        return [point().day, given.x, model().box.corner.x, notes()[0]["text"]]

    corner = StepRef(("model", "result", "box", "corner"))
    assert yielded(block(w)) == ArrayLiteral(
        (
            Index(result("point"), Literal(1)),
            Index(InputRef(("given",)), Literal(0)),
            Index(corner, Literal(0)),
            Index(Index(result("notes"), Literal(0)), Literal("text")),
        )
    )


def test_annotations_of_parts_follow_lists_and_models() -> None:
    @workflow(name="t.w")
    def w(pairs: list[Annotated[Pair, "x"]]) -> Any:
        width, height = model().box.size
        one, two = notes()[0]["pair"]
        texts = foreach(pairs, lambda item: [*item][1])
        both = foreach(pairs, lambda item: pair(1))
        number, _ = both[0]
        return [width, height, one, two, texts, number]

    elements = yielded(block(w)).elements  # type: ignore[union-attr]
    assert elements[:2] == items(StepRef(("model", "result", "box", "size")), 2)
    assert elements[5] == Index(Index(result("foreach_2"), Literal(0)), Literal(0))


@pytest.mark.parametrize(
    ("hint", "value", "written"),
    [
        (Point, Point(1, date(2026, 1, 2)), [1, "2026-01-02"]),
        (Note, {"text": "a", "pair": (1, 2)}, {"text": "a", "pair": [1, 2]}),
        (tuple[int, date], (1, date(2026, 1, 2)), [1, "2026-01-02"]),
        (Box, Box(Point(1, date(2026, 1, 2)), (3, 4)),
         {"corner": [1, "2026-01-02"], "size": [3, 4]}),
        (Model, Model(number=1, box=Box(Point(1, date(2026, 1, 2)), (3, 4))),
         {"number": 1, "box": {"corner": [1, "2026-01-02"], "size": [3, 4]}}),
    ],
)  # fmt: skip
def test_a_value_survives_serialization(hint: Any, value: Any, written: Any) -> None:
    annotation = Annotation.of(hint, "validation")
    assert annotation.write(value, "it", "it") == written
    assert annotation.read(written) == value


def test_values_with_symbols_in_them_become_literals() -> None:
    @workflow(name="t.w")
    def w(n: int, day: date) -> Any:
        corner = Point(n, day)
        box = Box(corner, (1, n))
        return use([box, Model.model_construct(number=n, box=box)])

    (step,) = steps(block(w))
    n, day = InputRef(("n",)), InputRef(("day",))
    box = MapLiteral((("corner", ArrayLiteral((n, day))), ("size", ArrayLiteral((Literal(1), n)))))
    whole = MapLiteral((("number", n), ("box", box)))
    assert step.call.arguments[0].value == ArrayLiteral((box, whole))


def test_a_model_that_validates_a_symbol_raises_with_a_cure() -> None:
    @workflow(name="t.w")
    def w(n: int) -> Any:
        return use(Model(number=n, box=Box(Point(1, date(2026, 1, 2)), (1, 2))))

    with pytest.raises(SymbolMisuse, match=r"a Model is built from .*Model\.model_construct"):
        w.program()
