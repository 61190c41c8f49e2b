"""The stored forms of values for which JSON has no type: bytes, as base64.

pydantic writes bytes as UTF-8 text, which most bytes are not. The annotation decides: a value that
is annotated as bytes, by itself or inside of lists, dataclasses and models, is stored as base64 and
read back as bytes. pydantic's core schema of an annotation is a tree of dicts; its nodes for such
values are replaced, and an annotation without them is left alone.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pydantic
from pydantic_core import SchemaSerializer, SchemaValidator, core_schema

from flowengine.program.nodes import Json

#: In the metadata of a node: the JSON Schema of its stored form.
FORM = "flowengine_form"
BYTES: Mapping[str, Json] = {"type": "string", "contentEncoding": "base64"}

#: Keys of nodes whose values are no nodes, or that stay as they are.
_OPAQUE = frozenset(
    {"cls", "config", "custom_error_context", "default", "default_factory", "expected"}
    | {"function", "keys_schema", "members", "metadata", "serialization"}
)
#: Keys whose value is a map of nodes by names, which may equal those of other keys.
_NAMED = frozenset({"choices", "fields"})
_URL_SAFE = str.maketrans("-_", "+/")


def use_stored_forms(adapter: pydantic.TypeAdapter[Any]) -> bool:
    """Have an adapter write and read the stored forms; return whether it has such values."""
    schema = adapter.core_schema
    if not isinstance(schema, dict) or not any(map(_is_replaced, _nodes(schema))):
        return False
    replaced: Any = _replaced(schema)
    adapter.core_schema = replaced
    adapter.validator = _built(SchemaValidator, replaced)
    adapter.serializer = _built(SchemaSerializer, replaced)
    return True


def form_of(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the JSON Schema of a node that is a stored form."""
    form = (schema.get("metadata") or {}).get(FORM)
    return None if form is None else dict(form)


def _built(kind: Callable[..., Any], schema: Any) -> Any:
    # The models in a schema have validators and serializers of their own, without these forms.
    try:
        return kind(schema, _use_prebuilt=False)
    except TypeError:
        built = kind(schema)
    if "Prebuilt" in repr(built):
        raise TypeError(
            f"pydantic {pydantic.VERSION} cannot write bytes inside of models as base64: "
            "install pydantic 2.12 or later"
        )
    return built


def _is_replaced(node: Mapping[str, Any]) -> bool:
    return node.get("type") == "bytes"


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a schema that may be replaced."""
    if isinstance(part, list | tuple):
        for item in part:
            yield from _nodes(item)
    elif isinstance(part, dict):
        if "serialization" in part:  # of the author, who decides about both directions
            return
        yield part
        for key, value in part.items():
            if key in _NAMED and isinstance(value, dict):
                yield from _nodes(list(value.values()))
            elif key not in _OPAQUE:
                yield from _nodes(value)


def _replaced(part: Any) -> Any:
    if isinstance(part, list | tuple):
        return type(part)(_replaced(item) for item in part)
    if not isinstance(part, dict) or "serialization" in part:
        return part
    if _is_replaced(part):
        return _base64(part)
    found: dict[str, Any] = {}
    for key, value in part.items():
        if key in _NAMED and isinstance(value, dict):
            found[key] = {name: _replaced(node) for name, node in value.items()}
        elif key == "choices" and part["type"] == "union" and _has_text(value):
            # `bytes | str`: stored as text, both, so that neither is read back as the other.
            found[key] = [one if _is_replaced(_choice(one)) else _replaced(one) for one in value]
        else:
            found[key] = value if key in _OPAQUE else _replaced(value)
    return found


def _choice(choice: Any) -> Mapping[str, Any]:
    """Return the node of a choice, which may be given with a label."""
    node: Mapping[str, Any] = choice[0] if isinstance(choice, tuple) else choice
    return node


def _has_text(choices: Any) -> bool:
    return any(_choice(one).get("type") == "str" for one in choices)


def _base64(node: Any) -> core_schema.CoreSchema:
    text = core_schema.str_schema(metadata={FORM: BYTES})
    decoded = core_schema.no_info_plain_validator_function(_decoded)
    return core_schema.json_or_python_schema(
        json_schema=core_schema.chain_schema([text, decoded, node]),
        python_schema=node,
        serialization=core_schema.plain_serializer_function_ser_schema(
            _encoded, return_schema=text, when_used="json"
        ),
    )


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.translate(_URL_SAFE), validate=True)
    except ValueError:
        raise ValueError("bytes are given as base64, and this text is not") from None
