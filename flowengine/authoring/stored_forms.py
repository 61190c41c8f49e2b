"""The stored forms of values for which JSON has no type: bytes as base64, secrets encrypted.

pydantic writes bytes as UTF-8 text, which most bytes are not, and a secret as asterisks. Here the
annotation decides: a value that is annotated so, by itself or inside of lists, dataclasses and
models, is stored in a form of its own and read back as it was. pydantic's core schema of an
annotation is a tree of dicts; its nodes for such values are replaced, and an annotation without
them is left alone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pydantic
from pydantic_core import PydanticCustomError, SchemaSerializer, SchemaValidator, core_schema

from flowengine.program.nodes import Json
from flowengine.secret_keys import MARK, decrypted, encrypted, is_stored_secret

#: In the metadata of a node: the JSON Schema of its stored form.
FORM = "flowengine_form"
BYTES: Mapping[str, Json] = {"type": "string", "contentEncoding": "base64"}
SECRET: Mapping[str, Json] = {
    "type": "object",
    "properties": {MARK: {"type": "string"}},
    "required": [MARK],
    "additionalProperties": False,
    "writeOnly": True,
}
#: The context of a validation whose value another program sent: secrets may be given as they are.
RECEIVED: Mapping[str, bool] = {"flowengine_received": True}

#: Keys of nodes whose values are no nodes, or that stay as they are.
_OPAQUE = frozenset(
    {"cls", "config", "custom_error_context", "default", "default_factory", "expected"}
    | {"function", "keys_schema", "members", "metadata", "serialization"}
)
#: Keys whose value is a map of nodes by names, which may equal those of other keys.
_NAMED = frozenset({"choices", "fields"})
_URL_SAFE = str.maketrans("-_", "+/")


class Forms(NamedTuple):
    """The kinds of values with stored forms that an annotation has."""

    bytes: bool = False
    secrets: bool = False


NO_FORMS = Forms()


def use_stored_forms(adapter: pydantic.TypeAdapter[Any]) -> Forms:
    """Have an adapter write and read the stored forms."""
    schema = adapter.core_schema
    if not isinstance(schema, dict):
        return NO_FORMS
    nodes = list(_nodes(schema))
    forms = Forms(any(map(_is_bytes, nodes)), any(map(_is_secret, nodes)))
    if any(forms):
        definitions = schema["definitions"] if schema["type"] == "definitions" else []
        replaced: Any = _Replacement(definitions).of(schema)
        adapter.core_schema = replaced
        adapter.validator = _built(SchemaValidator, replaced)
        adapter.serializer = _built(SchemaSerializer, replaced)
    return forms


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
            "install pydantic 2.14 or later"
        )
    return built


def _is_bytes(node: Mapping[str, Any]) -> bool:
    return bool(node["type"] == "bytes")


def _is_secret(node: Mapping[str, Any]) -> bool:
    """Whether a node is of SecretStr, SecretBytes or Secret: pydantic marks them by a function."""
    if node["type"] == "lax-or-strict":
        return _is_secret(node["lax_schema"])
    writes = (node.get("serialization") or {}).get("function")
    return (
        node["type"] == "json-or-python"
        and getattr(writes, "__module__", "") == "pydantic.types"
        and "secret" in getattr(writes, "__qualname__", "").lower()
    )


def _inner(node: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the parts of a node that are nodes, or lists of them."""
    for key, value in node.items():
        if key in _NAMED and isinstance(value, dict):
            yield from value.values()
        elif key not in _OPAQUE:
            yield value


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a schema that may be replaced."""
    if isinstance(part, list | tuple):
        for item in part:
            yield from _nodes(item)
    elif isinstance(part, dict) and "type" in part:
        if _is_secret(part):
            yield part
        elif "serialization" not in part:  # of the author, who decides about both directions
            yield part
            for inner in _inner(part):
                yield from _nodes(inner)


class _Replacement:
    """The replacement of the nodes of one schema."""

    def __init__(self, definitions: list[Any]) -> None:
        self._definitions = definitions  #: that the nodes may refer to

    def of(self, part: Any) -> Any:
        """Return a node, or a list of nodes, with the stored forms."""
        if isinstance(part, list | tuple):
            return type(part)(self.of(item) for item in part)
        if not isinstance(part, dict) or "type" not in part:
            return part
        if _is_secret(part):
            return self._secret(part)
        if "serialization" in part:
            return part
        if _is_bytes(part):
            return _base64(part)
        found: dict[str, Any] = {}
        for key, value in part.items():
            if key in _NAMED and isinstance(value, dict):
                found[key] = {name: self.of(node) for name, node in value.items()}
            elif key == "choices" and _has_text(value):
                # `bytes | str`: stored as text, both, so that neither is read as the other.
                found[key] = [one if _is_bytes(_choice(one)) else self.of(one) for one in value]
            else:
                found[key] = value if key in _OPAQUE else self.of(value)
        return found

    def _secret(self, node: Any) -> core_schema.CoreSchema:
        plain = (node["lax_schema"] if node["type"] == "lax-or-strict" else node)["json_schema"]
        reader = _built(SchemaValidator, self._alone(plain))
        writer = _built(SchemaSerializer, self._alone(plain["schema"]))

        def read(stored: Json, info: core_schema.ValidationInfo) -> Any:
            if is_stored_secret(stored):
                text = decrypted(stored)
            elif info.context is RECEIVED:
                text = json.dumps(stored).encode()
            else:
                raise ValueError("a secret is stored encrypted, and this value is not")
            try:
                return reader.validate_json(text)
            except pydantic.ValidationError:  # without its text, which has the value
                what = "the content of the secret is not of its type"
                raise PydanticCustomError("secret", what) from None

        def write(secret: Any) -> dict[str, str]:
            return encrypted(writer.to_json(secret.get_secret_value()))

        form = core_schema.any_schema(metadata={FORM: SECRET})
        return core_schema.json_or_python_schema(
            json_schema=core_schema.chain_schema(
                [form, core_schema.with_info_plain_validator_function(read)]
            ),
            python_schema=node,
            serialization=core_schema.plain_serializer_function_ser_schema(
                write, return_schema=form, when_used="json-unless-none"
            ),
        )

    def _alone(self, part: Any) -> Any:
        """Return a node that is used by itself, with the definitions that it refers to."""
        found = self.of(part)
        if not any(node["type"] == "definition-ref" for node in _nodes(part)):
            return found
        inner = _Replacement([])
        return core_schema.definitions_schema(found, [inner.of(one) for one in self._definitions])


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
            _encoded, return_schema=text, when_used="json-unless-none"
        ),
    )


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.translate(_URL_SAFE), validate=True)
    except ValueError:
        raise ValueError("bytes are given as base64, and this text is not") from None
