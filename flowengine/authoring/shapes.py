"""Derive the annotations of a symbol's parts from its own annotation.

A symbol of ``tuple[int, str]`` can be unpacked, because its length is known; a field of a
NamedTuple is an item of a list, its JSON form. `Any` where nothing is known.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

import pydantic

_LISTS = (list, Sequence, typing.Sequence)


def fixed_items(hint: Any) -> tuple[Any, ...] | None:
    """Return the annotations of a tuple's items, if their number is fixed."""
    hint = unwrap_hint(hint)
    if _is_named_tuple(hint):
        hints = _class_hints(hint)
        return tuple(hints.get(name, Any) for name in hint._fields)
    if typing.get_origin(hint) is not tuple:
        return None
    items = typing.get_args(hint)
    return None if Ellipsis in items else items


def position_of(hint: Any, name: str) -> int | None:
    """Return the position of a NamedTuple's field."""
    hint = unwrap_hint(hint)
    return hint._fields.index(name) if _is_named_tuple(hint) and name in hint._fields else None


def field_hint(hint: Any, name: str) -> Any:
    """Return the annotation of one field."""
    hint = unwrap_hint(hint)
    if typing.get_origin(hint) is dict:
        return typing.get_args(hint)[1]
    has_fields = (
        dataclasses.is_dataclass(hint)
        or _is_typed_dict(hint)
        or _is_named_tuple(hint)
        or (isinstance(hint, type) and issubclass(hint, pydantic.BaseModel))
    )
    return _class_hints(hint).get(name, Any) if has_fields else Any


def item_hint(hint: Any, index: object = None) -> Any:
    """Return the annotation of one item; without an index, of any item."""
    hint = unwrap_hint(hint)
    if isinstance(index, str):
        return field_hint(hint, index)
    items = fixed_items(hint)
    if items is not None:
        fits = isinstance(index, int) and -len(items) <= index < len(items)
        return items[typing.cast(int, index)] if fits else Any
    if typing.get_origin(hint) in (*_LISTS, tuple):
        return typing.get_args(hint)[0]
    return Any


def joined_hint(hints: Sequence[Any]) -> Any:
    """Return the annotation of a value that has one of these annotations."""
    if all(hint == hints[0] for hint in hints):
        return hints[0]
    lengths = {None if (items := fixed_items(h)) is None else len(items) for h in hints}
    if len(lengths) == 1 and (length := lengths.pop()) is not None:
        return tuple[(Any,) * length]  # type: ignore[misc]
    return Any


def value_hint(value: Any) -> Any:
    """Return an annotation for a Python value, precise for tuples only."""
    if isinstance(value, tuple):
        kind = type(value)
        return kind if _is_named_tuple(kind) else tuple[tuple(map(value_hint, value))]  # type: ignore[misc]
    return Any


def unwrap_hint(hint: Any) -> Any:
    """Strip Annotated[…] and NewType from an annotation."""
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint


def _is_named_tuple(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _is_typed_dict(hint: Any) -> bool:
    # Not typing.is_typeddict: it misses the TypedDict of typing_extensions, which pydantic
    # needs before Python 3.12.
    return isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__total__")


def _class_hints(hint: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(hint, include_extras=True)
    except (NameError, TypeError):
        return {}  # pydantic reports an invalid annotation
