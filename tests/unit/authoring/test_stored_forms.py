"""Bytes are stored as base64, because their annotation says so."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pytest
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from flowengine import AuthoringError, workflow
from flowengine.authoring.annotations import Annotation, json_value
from flowengine.errors import NotJson
from flowengine.program.validator import schema_misfit

RAW = b"\xff\x00\xfe text"
WRITTEN = "/wD+IHRleHQ="


@dataclasses.dataclass
class Scan:
    page: int
    image: bytes = b"\xff"


class Page(BaseModel):
    model_config = ConfigDict(strict=True)
    type: str
    data: bytes
    default: bytes | None = None


class Book(BaseModel):
    pages: list[Page]
    cover: Scan
    metadata: dict[str, bytes]


class Part(TypedDict):
    raw: bytes


class Pair(NamedTuple):
    key: str
    raw: bytes


class Tree(BaseModel):
    raw: bytes
    below: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    raw: bytes


class Dog(BaseModel):
    kind: Literal["dog"]
    raw: bytes


PAGE = Page(type="a", data=RAW, default=RAW)
VALUES: list[tuple[Any, Any]] = [
    (bytes, RAW),
    (bytes, b""),
    (list[bytes], [RAW, b"ascii"]),
    (dict[str, bytes], {"a": RAW}),
    (bytes | None, RAW),
    (bytes | None, None),
    (bytes | int, RAW),
    (bytes | int, 5),
    (bytes | float | None, 5.5),
    (dict[str, list[bytes] | Scan], {"a": [RAW], "b": Scan(1, RAW)}),
    (tuple[int, bytes], (1, RAW)),
    (Annotated[bytes, Field(max_length=len(RAW))], RAW),
    (Scan, Scan(1, RAW)),
    (list[Scan], [Scan(1), Scan(2, RAW)]),
    (Page, PAGE),
    (Book, Book(pages=[PAGE], cover=Scan(1, RAW), metadata={"a": RAW})),
    (Part, {"raw": RAW}),
    (Pair, Pair("a", RAW)),
    (Tree, Tree(raw=RAW, below=[Tree(raw=b"x")])),
    (Annotated[Cat | Dog, Field(discriminator="kind")], Dog(kind="dog", raw=RAW)),
    (Base64Bytes, b"as pydantic writes it"),
]


@pytest.mark.parametrize(("hint", "value"), VALUES, ids=map(str, range(len(VALUES))))
@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_bytes_come_back_unchanged(hint: Any, value: Any, mode: Any) -> None:
    annotation = Annotation.of(hint, mode)
    given = value if hint is not Base64Bytes else b"YXMgcHlkYW50aWMgd3JpdGVzIGl0"
    written = annotation.write(given, "a value", "value")
    stored = json.loads(json.dumps(written))
    assert annotation.schema is not None
    assert schema_misfit(annotation.schema, stored) == ""
    assert annotation.read(stored) == value


def test_the_stored_form_is_base64() -> None:
    annotation = Annotation.of(bytes, "validation")
    assert annotation.write(RAW, "a value", "value") == WRITTEN
    assert annotation.schema == {"type": "string", "contentEncoding": "base64"}
    assert annotation.read(WRITTEN.replace("/", "_").replace("+", "-")) == RAW
    for text in ("not base64", "abc", "é"):
        with pytest.raises(pydantic.ValidationError, match="bytes are given as base64"):
            annotation.read(text)
    written = Annotation.of(Book, "serialization").write(VALUES[15][1], "a value", "value")
    assert written["pages"] == [{"type": "a", "data": WRITTEN, "default": WRITTEN}]
    assert written["cover"] == {"page": 1, "image": WRITTEN}
    assert written["metadata"] == {"a": WRITTEN}


def test_text_or_bytes_are_text() -> None:
    annotation = Annotation.of(str | bytes, "validation")
    assert annotation.write("abcd", "a value", "value") == "abcd"
    assert annotation.read("abcd") == "abcd"


def test_other_annotations_are_left_alone() -> None:
    class Plain(BaseModel):
        type: str
        of: dict[str, list[int]] | None = None

    annotation = Annotation.of(Plain, "validation")
    assert not annotation.has_forms
    assert annotation.adapter.validator is Plain.__pydantic_validator__


def test_a_model_without_annotation_has_the_forms_of_its_fields() -> None:
    value = {"of": [Scan(1, RAW), PAGE]}
    assert json_value(value, "a value") == {
        "of": [
            {"page": 1, "image": WRITTEN},
            {"type": "a", "data": WRITTEN, "default": WRITTEN},
        ]
    }


class DataFrame:
    """Any class that pydantic does not know."""


class Holder(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    table: DataFrame


CURE = "write the data to a file or an object store and pass its address: .* does not pickle"


@pytest.mark.parametrize(
    ("hint", "value", "says"),
    [
        (Any, RAW, r"value is of type bytes; annotate it as bytes: then it is stored as base64"),
        (Any, {"a": [bytearray(RAW)]}, r"value\['a'\]\[0\] is of type bytearray; annotate it as"),
        (Any, DataFrame(), f"value is of type DataFrame; .*{CURE}"),
        (Holder, Holder(table=DataFrame()), f"DataFrame; .*{CURE}"),
        (float, float("nan"), rf"number JSON does not have \(nan\); use None .*{CURE}"),
        (list[float], [1.0, float("inf")], rf"value\[1\] .*\(inf\); use None .*{CURE}"),
    ],
    ids=["bytes", "bytearray", "object", "in a model", "nan", "infinity"],
)
def test_a_value_without_json_form_is_refused_with_the_cure(
    hint: Any, value: Any, says: str
) -> None:
    with pytest.raises((NotJson, pydantic.ValidationError), match=says):
        Annotation.of(hint, "serialization").write(value, "a value", "value")


def test_an_annotation_without_json_form_is_refused_with_the_cure() -> None:
    @workflow(name="forms.tabled")
    def tabled(table: DataFrame) -> int:
        return 1

    with pytest.raises(AuthoringError, match=CURE):
        tabled.program()
