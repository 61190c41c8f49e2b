"""Convert values between annotated Python types and JSON.

An annotation has three forms: a type of the program (``str`` is String), a JSON
Schema where that type is too coarse, and the pydantic adapter that validates,
coerces and serializes values.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import inspect
import json
import math
import reprlib
import types
import typing
from collections.abc import Awaitable, Coroutine, Hashable, Mapping
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Literal, cast
from uuid import UUID

import pydantic
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, core_schema, to_jsonable_python

from flowengine.authoring.secrets import SECRET_TYPES
from flowengine.authoring.shapes import unwrap_hint
from flowengine.authoring.stored_forms import NO_FORMS, RECEIVED, Forms, form_of, use_stored_forms
from flowengine.errors import NotJson, SecretRefused
from flowengine.program.nodes import ArrayType, Json, Type
from flowengine.program.patterns import pattern_problem
from flowengine.secret_keys import count_stored, problem_of_keys

_SCALARS: Mapping[Any, str] = {str: "String", int: "Long", float: "Double", bool: "Boolean"}
_UNTYPED = (Any, object, inspect.Parameter.empty)

# Python values with one unambiguous JSON form. Sets (no order) and bytes (no type in JSON, so that
# nobody could read them back) are excluded: they need an annotation.
_WRITABLE = (
    *(datetime.date, datetime.time, datetime.timedelta, UUID, Decimal, enum.Enum, PurePath),
    pydantic.BaseModel,
)


#: Types whose values are their own JSON form, whatever they are.
_OWN_FORM = frozenset({int, bool, types.NoneType})
#: Keywords of a schema that have values, and not schemas.
_VALUES = frozenset({"const", "default", "enum", "examples"})


_IN_PROGRAM = (
    "a program is stored as it is: leave it out of defaults and of the code of workflows, and pass "
    "it as an input of the run"
)


class _QuietSchema(GenerateJsonSchema):
    # pydantic omits a default without JSON form from the schema. Its warning would break
    # a program under `-W error`.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def str_schema(self, schema: core_schema.StringSchema) -> dict[str, Any]:
        return form_of(schema) or super().str_schema(schema)

    def any_schema(self, schema: core_schema.AnySchema) -> dict[str, Any]:
        return form_of(schema) or super().any_schema(schema)


@dataclasses.dataclass(frozen=True)
class Annotation:
    """The annotation of one value."""

    hint: Any
    type: Type
    schema: Mapping[str, Json] | None  #: None if `type` is exact
    adapter: pydantic.TypeAdapter[Any]
    plain: bool  #: composed of JSON types only: a valid value is its own JSON form
    forms: Forms = NO_FORMS

    @classmethod
    def of(cls, hint: Any, mode: Literal["validation", "serialization"]) -> Annotation:
        """Parse an annotation; raises pydantic's error for an unsupported type."""
        if typing.get_origin(hint) in (Awaitable, Coroutine):
            hint = typing.get_args(hint)[-1]
        adapted: Any = Any if hint in _UNTYPED else hint
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(adapted)
        if _is_simple(hint):
            return cls(hint, program_type(hint), None, adapter, _is_plain(hint))
        forms = use_stored_forms(adapter)
        schema = _json_schema(adapter, mode)
        return cls(hint, program_type(hint), schema, adapter, _is_plain(hint), forms)

    @property
    def has_forms(self) -> bool:
        """Whether it contains values with a stored form of their own."""
        return any(self.forms)

    def read(self, value: Json) -> Any:
        """Deserialize stored JSON; raises pydantic's ValidationError."""
        if self.schema is None:
            # The stored value may be cached or shared with another step: the function gets a copy.
            copied = _deep_copy(value) if type(value) is dict or type(value) is list else value
            return self.adapter.validator.validate_python(copied)
        # Not validate_python: a strict model accepts a date as text only from JSON.
        return self.adapter.validate_json(json.dumps(value))

    def receive(self, value: Json) -> Any:
        """Deserialize JSON that another program sent, with secrets encrypted or as they are."""
        return self.adapter.validate_json(json.dumps(value), context=RECEIVED)

    def write(self, value: Any, what: str, where: str, *, in_program: bool = False) -> Json:
        """Validate and serialize a Python value; with `in_program` it is a constant of a program.

        Raises pydantic's ValidationError for an invalid value, NotJson for a valid
        one without JSON form, SecretRefused for a secret that cannot be encrypted.
        """
        # The validator itself: its wrapper takes as long as the validation of a small value.
        value = self.adapter.validator.validate_python(value)
        if self.plain:
            return json_value(value, what, where)
        # pydantic serializes an infinity inside an `Any` as null: check first.
        secrets = _secrets_in(self.adapter.dump_python(value), what, where)
        if secrets and (why := _IN_PROGRAM if in_program else problem_of_keys()):
            raise SecretRefused(what, where, why)
        try:
            written = self.adapter.dump_python(value, mode="json")
        except (PydanticSerializationError, UnicodeDecodeError):
            json_value(self.adapter.dump_python(value), what, where)  # names the offending part
            raise NotJson(what, where, type(value).__name__) from None
        if secrets and count_stored(written) < secrets:  # pydantic writes the others as asterisks
            raise NotJson(what, where, "Secret without an annotation")
        return json_value(written, what, where)

    def __str__(self) -> str:
        if self.hint in _UNTYPED:
            return "any JSON value"
        return inspect.formatannotation(self.hint).replace("typing.", "")


def mismatch(name: str, annotation: Annotation, value: Any, error: pydantic.ValidationError) -> str:
    """Describe an invalid value: parameter, expected type, given value."""
    details = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        place = "".join(f"[{part!r}]" for part in item["loc"])
        details.append(f"{place}: {item['msg']}" if place else item["msg"])
    given = f"{reprlib.repr(value)} ({type(value).__name__})"
    if annotation.forms.secrets:
        given = "another value, which is not shown"
    return f"{name!r} should be {annotation}, was {given}: {', '.join(details)}"


def program_type(hint: Any) -> Type:
    """Return the program's type for an annotation; ``Json`` if there is none."""
    hint = unwrap_hint(hint)
    if hint is list or typing.get_origin(hint) is list:
        return ArrayType(program_type(*typing.get_args(hint) or (Any,)))
    return _SCALARS.get(hint, "Json") if isinstance(hint, type) else "Json"


def json_value(value: Any, what: str, where: str = "value") -> Json:
    """Return the value as plain JSON; raises NotJson naming the part without JSON form."""
    try:
        return _copied_json(value)
    except (_OtherForm, RecursionError):
        pass
    try:
        return _plain_json(value, what, where)
    except RecursionError:
        raise NotJson(what, where, "structure that contains itself") from None


class _OtherForm(Exception):
    """A value is no JSON as it is."""


def _copied_json(value: Any) -> Json:
    """Copy a value that is JSON already; raises _OtherForm. Most values are: it is quick."""
    kind = type(value)
    if kind in _OWN_FORM or (kind is str and value.isascii()):
        return cast(Json, value)
    if kind is dict:
        for key in value:
            if type(key) is not str or not key.isascii():
                raise _OtherForm
        return {key: _copied_json(item) for key, item in value.items()}
    if kind is list:
        return [_copied_json(item) for item in value]
    if kind is float and math.isfinite(value):
        return cast(Json, value)
    raise _OtherForm


def _deep_copy(value: Json) -> Json:
    """Copy lists and dicts, so that no caller shares them."""
    match value:
        case list():
            return [_deep_copy(item) if isinstance(item, list | dict) else item for item in value]
        case dict():
            return {key: _deep_copy(item) for key, item in value.items()}
        case _:
            return value


def _secrets_in(value: Any, what: str, where: str) -> int:
    """Count the secrets in lists and dicts; raise NotJson for a NaN or an infinity in them."""
    match value:
        case float():
            _refuse_non_finite(value, what, where)
        case list() | tuple():
            return sum(_secrets_in(v, what, f"{where}[{i}]") for i, v in enumerate(value))
        case dict():
            return sum(_secrets_in(v, what, f"{where}[{k!r}]") for k, v in value.items())
        case set() | frozenset():
            return sum(_secrets_in(item, what, where) for item in value)
    return int(isinstance(value, SECRET_TYPES))


def _refuse_non_finite(value: float, what: str, where: str) -> None:
    if not math.isfinite(value):
        raise NotJson(what, where, f"number JSON does not have ({value})")


def _plain_json(value: Any, what: str, where: str) -> Json:
    kind = type(value)
    if kind in _OWN_FORM or (kind is str and value.isascii()):
        return cast(Json, value)
    # An Enum may also be a str or an int: store its value.
    if isinstance(value, _WRITABLE) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    ):
        try:
            if (own := _own_forms(cast(Hashable, type(value)))) is not None:
                return own.write(value, what, where)
            value = to_jsonable_python(value, inf_nan_mode="constants")
        except (PydanticSerializationError, UnicodeDecodeError):
            raise NotJson(what, where, type(value).__name__) from None
    match value:
        case None | bool():
            return value
        case str():
            if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
                raise NotJson(what, where, "text with a lone surrogate")
            return str.__str__(value)  # a subclass may override __str__
        case int():
            return int(value)
        case float():
            _refuse_non_finite(value, what, where)
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


@functools.lru_cache(maxsize=256)
def _own_forms(kind: Any) -> Annotation | None:
    """Return the annotation of a class if its fields have stored forms of their own."""
    if not (dataclasses.is_dataclass(kind) or issubclass(kind, pydantic.BaseModel)):
        return None
    try:
        own = Annotation.of(kind, "serialization")
    except (pydantic.errors.PydanticUserError, TypeError):
        return None
    return own if own.has_forms else None


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
    if origin in (list, typing.Union, types.UnionType):
        return all(_is_plain(item) for item in typing.get_args(hint))
    return hint in (None, types.NoneType, dict) or _is_simple(hint)


def _json_schema(
    adapter: pydantic.TypeAdapter[Any], mode: Literal["validation", "serialization"]
) -> Mapping[str, Json] | None:
    try:
        schema = adapter.json_schema(mode=mode, schema_generator=_QuietSchema)
    except pydantic.PydanticInvalidForJsonSchema:
        return None  # the schema only documents; the adapter validates
    found: Mapping[str, Json] = _without_refused_patterns(schema)
    return found


def _without_refused_patterns(schema: Any) -> Any:
    """Leave out patterns that a program cannot have, as those with lookaround.

    They are Python's: pydantic matches them in the facet and at the start, as part of the try.
    """
    if isinstance(schema, list):
        return [_without_refused_patterns(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: item if name in _VALUES else _without_refused_patterns(item)
        for name, item in schema.items()
        if not (name == "pattern" and isinstance(item, str) and pattern_problem(item))
    }
