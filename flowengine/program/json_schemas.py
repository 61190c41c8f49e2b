"""Declared fields as one JSON Schema: for the tools of models and of MCP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowengine.program.nodes import ArrayType, Field, Json, Schemas, Type

_TYPES = {
    **dict.fromkeys(("Long", "Int", "Integer"), "integer"),
    **dict.fromkeys(("Double", "Float", "Number"), "number"),
    **dict.fromkeys(("String", "Text"), "string"),
    **dict.fromkeys(("Boolean", "Bool"), "boolean"),
}
_DEFS = "#/$defs/"


def object_schema(
    fields: Iterable[Field],
    schemas: Schemas,
    *,
    all_required: bool = False,
    nullable: bool = False,
) -> dict[str, Json]:
    """Return the schema of a map with these fields, and no others.

    Fields with a default may be left out, unless `all_required`. With `nullable`, values may be
    null, as AFL's types allow; a schema that a field declares says that itself.
    """
    return _Writer(schemas, nullable).whole(list(fields), all_required)


class _Writer:
    def __init__(self, schemas: Schemas, nullable: bool) -> None:
        self._schemas, self._nullable = schemas, nullable
        self._definitions: dict[str, Any] = {}

    def whole(self, fields: list[Field], all_required: bool) -> dict[str, Json]:
        found = self._object(fields, all_required=all_required)
        return found | ({"$defs": self._definitions} if self._definitions else {})

    def _object(self, fields: Iterable[Field], *, all_required: bool = False) -> dict[str, Any]:
        listed = list(fields)
        required = [f.name for f in listed if all_required or f.default is None]
        return {
            "type": "object",
            "properties": {field.name: self._field(field) for field in listed},
            "required": required,
            "additionalProperties": False,
        }

    def _field(self, field: Field) -> dict[str, Any]:
        if field.schema is None:
            return self._type(field.type)
        schema = {k: v for k, v in field.schema.items() if k not in ("$defs", "$schema", "$id")}
        for name, inner in dict(field.schema.get("$defs") or {}).items():
            self._definitions[f"{field.name}.{name}"] = _moved(inner, field.name)
        moved: dict[str, Any] = _moved(schema, field.name)
        return moved

    def _type(self, declared: Type) -> dict[str, Any]:
        if isinstance(declared, ArrayType):
            return {"type": self._named("array"), "items": self._type(declared.element)}
        if declared in _TYPES:
            return {"type": self._named(_TYPES[declared])}
        if declared not in self._schemas:
            return {}
        if declared not in self._definitions:
            self._definitions[declared] = {}  # a schema may name itself
            self._definitions[declared] = self._object(self._schemas[declared]) | {
                "additionalProperties": True
            }
        reference = {"$ref": f"{_DEFS}{declared}"}
        return {"anyOf": [reference, {"type": "null"}]} if self._nullable else reference

    def _named(self, kind: str) -> str | list[str]:
        return [kind, "null"] if self._nullable else kind


def _moved(schema: Any, prefix: str) -> Any:
    """Return a schema whose definitions have moved below names with a prefix."""
    if isinstance(schema, dict):
        return {
            key: f"{_DEFS}{prefix}.{value.removeprefix(_DEFS)}"
            if key == "$ref" and isinstance(value, str) and value.startswith(_DEFS)
            else _moved(value, prefix)
            for key, value in schema.items()
        }
    return [_moved(item, prefix) for item in schema] if isinstance(schema, list) else schema
