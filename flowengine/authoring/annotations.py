"""Carry values between an author's annotations and JSON.

An annotation is read three ways: as a type of the program (``str`` is String),
as a JSON Schema where it says more than that type can, and as the pydantic
adapter that checks, coerces, reads and writes the values themselves.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import inspect
import json
import math
import reprlib
import types
import typing
from collections.abc import Awaitable, Coroutine, Mapping
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Literal
from uuid import UUID

import pydantic
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python

from flowengine.authoring.shapes import undressed
from flowengine.errors import NotJson
from flowengine.program.nodes import ArrayType, Json, Type

_SCALARS: Mapping[Any, str] = {str: "String", int: "Long", float: "Double", bool: "Boolean"}
_UNTYPED = (Any, object, inspect.Parameter.empty)

# Python values with one evident JSON form. Sets (no order) and bytes (no one
# encoding) are left out: the author has to say by an annotation what is meant.
_WRITABLE = (
    *(datetime.date, datetime.time, datetime.timedelta, UUID, Decimal, enum.Enum, PurePath),
    pydantic.BaseModel,
)


class _Quiet(GenerateJsonSchema):
    # A default that JSON cannot show is left out of the schema. That is no news to the
    # author of a workflow, and a warning here would break a program under `-W error`.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


@dataclasses.dataclass(frozen=True)
class Annotation:
    """What an author's annotation says about one value."""

    hint: Any
    type: Type
    schema: Mapping[str, Json] | None  #: None where `type` says it all
    adapter: pydantic.TypeAdapter[Any]
    plain: bool  #: made of JSON's own types alone: a value that fits is its own JSON form

    @classmethod
    def of(cls, hint: Any, mode: Literal["validation", "serialization"]) -> Annotation:
        """Read an annotation; raises what pydantic raises for a type it does not know."""
        if typing.get_origin(hint) in (Awaitable, Coroutine):
            hint = typing.get_args(hint)[-1]
        known: Any = Any if hint in _UNTYPED else hint
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(known)
        schema = None if _is_simple(hint) else _json_schema(adapter, mode)
        return cls(hint, program_type(hint), schema, adapter, _is_plain(hint))

    def read(self, value: Json) -> Any:
        """The Python value of stored JSON; raises pydantic's ValidationError."""
        if self.schema is None:
            # What is read may be remembered, or be another step's too: nobody may change it.
            return self.adapter.validate_python(_own(value))
        # Not validate_python: a strict model takes the text of a date in JSON only.
        return self.adapter.validate_json(json.dumps(value))

    def write(self, value: Any, what: str, where: str) -> Json:
        """The JSON form of a Python value, checked and coerced.

        Raises pydantic's ValidationError for a value that does not fit, NotJson
        for one that fits and has no JSON form.
        """
        value = self.adapter.validate_python(value)
        if self.plain:
            return json_value(value, what, where)
        try:
            # pydantic writes an infinity inside an `Any` as null: look before it does.
            refuse_non_finite(self.adapter.dump_python(value), what, where)
            written = self.adapter.dump_python(value, mode="json")
        except (PydanticSerializationError, UnicodeDecodeError):
            json_value(self.adapter.dump_python(value), what, where)  # finds the part to blame
            raise NotJson(what, where, type(value).__name__) from None
        return json_value(written, what, where)

    def __str__(self) -> str:
        if self.hint in _UNTYPED:
            return "any JSON value"
        return inspect.formatannotation(self.hint).replace("typing.", "")


def mismatch(name: str, annotation: Annotation, value: Any, error: pydantic.ValidationError) -> str:
    """One sentence on a value that does not fit: which, what it should be, what it is."""
    details = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        place = "".join(f"[{part!r}]" for part in item["loc"])
        details.append(f"{place}: {item['msg']}" if place else item["msg"])
    given = f"{reprlib.repr(value)} ({type(value).__name__})"
    return f"{name!r} should be {annotation}, was {given}: {', '.join(details)}"


def program_type(hint: Any) -> Type:
    """The program's word for an annotation; ``Json`` for all it has no word for."""
    hint = undressed(hint)
    if hint is list or typing.get_origin(hint) is list:
        return ArrayType(program_type(*typing.get_args(hint) or (Any,)))
    return _SCALARS.get(hint, "Json") if isinstance(hint, type) else "Json"


def json_value(value: Any, what: str, where: str = "value") -> Json:
    """The value as plain JSON, or NotJson naming the part that has no JSON form."""
    try:
        return _plain_json(value, what, where)
    except RecursionError:
        raise NotJson(what, where, "structure without end") from None


def _own(value: Json) -> Json:
    """The same JSON, of which nobody else holds a part."""
    match value:
        case list():
            return [_own(item) if isinstance(item, list | dict) else item for item in value]
        case dict():
            return {key: _own(item) for key, item in value.items()}
        case _:
            return value


def refuse_non_finite(value: Any, what: str, where: str) -> None:
    """Raise NotJson for a NaN or an infinity anywhere in lists and dicts."""
    match value:
        case float() if not math.isfinite(value):
            raise NotJson(what, where, f"number JSON does not have ({value})")
        case list() | tuple():
            for index, item in enumerate(value):
                refuse_non_finite(item, what, f"{where}[{index}]")
        case dict():
            for key, item in value.items():
                refuse_non_finite(item, what, f"{where}[{key!r}]")


def _plain_json(value: Any, what: str, where: str) -> Json:
    # An Enum may be a str or an int as well; its value is meant, not its class.
    if isinstance(value, _WRITABLE) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    ):
        return _plain_json(_by_pydantic(value, what, where), what, where)
    match value:
        case None | bool():
            return value
        case str():
            if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
                raise NotJson(what, where, "text with half a character (a lone surrogate)")
            return str.__str__(value)  # a subclass may print itself otherwise
        case int():
            return int(value)
        case float():
            refuse_non_finite(value, what, where)
            return float(value)
        case list() | tuple():
            return [_plain_json(item, what, f"{where}[{i}]") for i, item in enumerate(value)]
        case dict():
            for key in value:
                if not isinstance(key, str):
                    name = type(key).__name__
                    raise NotJson(what, where, f"dict with the key {key!r}, a {name} and not text")
            return {
                _plain_json(key, what, where): _plain_json(item, what, f"{where}[{key!r}]")
                for key, item in value.items()
            }
    raise NotJson(what, where, type(value).__name__)


def _by_pydantic(value: Any, what: str, where: str) -> Json:
    try:
        return to_jsonable_python(value, inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeDecodeError):
        raise NotJson(what, where, type(value).__name__) from None


def _is_simple(hint: Any) -> bool:
    if isinstance(hint, typing.NewType):
        return _is_simple(hint.__supertype__)
    if hint is list or typing.get_origin(hint) is list:
        return all(_is_simple(item) for item in typing.get_args(hint))
    return hint in _UNTYPED or (isinstance(hint, type) and hint in _SCALARS)


def _is_plain(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is dict:
        key, item = typing.get_args(hint)
        return key is str and _is_plain(item)
    if origin in (typing.Union, types.UnionType):
        return all(_is_plain(item) for item in typing.get_args(hint))
    if origin is list:
        return all(_is_plain(item) for item in typing.get_args(hint))
    return hint in (None, types.NoneType, dict) or _is_simple(hint)


def _json_schema(
    adapter: pydantic.TypeAdapter[Any], mode: Literal["validation", "serialization"]
) -> Mapping[str, Json] | None:
    try:
        return adapter.json_schema(mode=mode, schema_generator=_Quiet)
    except pydantic.PydanticInvalidForJsonSchema:
        return None  # the schema is a courtesy to readers without our code, the adapter decides
