"""Payloads as JSON: a value that JSON cannot carry is refused with its path.

pydantic would write a NaN as null, a set as a list and bytes as text, so that the recipient gets
another value than the sender gave.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from flowengine.errors import NotSendable

#: How deep lists and maps may be nested: the recipient's parser refuses more than 200 levels.
_MAX_DEPTH = 190
_MAX_INTEGER, _MIN_INTEGER = 10**4_300, -(10**4_300)  #: the parser refuses more digits
_CONTAINERS = (dict, list, tuple)

_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def check_payload(payload: Mapping[str, Any], what: str, place: str = "payload") -> None:
    """Raise NotSendable for the first value that JSON cannot carry."""
    if not _is_sound(payload):
        raise NotSendable(what, *_first_invalid(payload, place))


def payload_json(message: BaseModel, exclude: set[str], what: str) -> str:
    """Return the JSON of a message, whose payload is checked."""
    payload = message.payload  # type: ignore[attr-defined]
    check_payload(payload, what)
    try:
        return message.model_dump_json(exclude=exclude)
    except (PydanticSerializationError, UnicodeError):  # of a lone surrogate
        raise NotSendable(what, *_first_invalid(payload, "payload")) from None


def _is_sound(payload: Any) -> bool:
    """Whether JSON can carry all but perhaps texts, which pydantic checks when it writes them.

    Called for every message, so the usual types come first.
    """
    level = [payload]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for part in level:
            values = part
            if isinstance(part, dict):
                values = part.values()
                for key in part:
                    # `json` writes the key 1 as "1", which is another key.
                    if type(key) is not str and not isinstance(key, str):
                        return False
            elif not isinstance(part, list | tuple):
                return False
            for value in values:
                kind = type(value)
                if kind is str or value is None:
                    continue
                if isinstance(value, int):
                    if not _MIN_INTEGER < value < _MAX_INTEGER:
                        return False
                elif isinstance(value, float):
                    if not isfinite(value):
                        return False
                elif isinstance(value, _CONTAINERS):
                    below.append(value)
                elif not isinstance(value, str):
                    return False
        if not below:
            return True
        level = below
    return False


def _first_invalid(value: Any, place: str) -> tuple[str, str]:
    """Return the place and the kind of the first part that JSON cannot carry."""
    pending: list[tuple[Any, str, int]] = [(value, place, 1)]
    while pending:
        part, where, depth = pending.pop()
        if depth > _MAX_DEPTH and isinstance(part, dict | list | tuple):
            return place, f"structure of more than {_MAX_DEPTH} levels"
        if isinstance(part, dict):
            for key in part:
                if not isinstance(key, str) or not _fits(key):
                    return f"{where}, key {key!r}", type(key).__name__
            items = [(item, f"{where}[{key!r}]", depth + 1) for key, item in part.items()]
        elif isinstance(part, list | tuple):
            items = [(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(part)]
        elif not _fits(part):
            kind = type(part).__name__
            return where, f"{kind} of the value {part}" if isinstance(part, float) else kind
        else:
            continue
        pending += reversed(items)
    return place, type(value).__name__


def _fits(value: Any) -> bool:
    try:
        _encode(value).encode()
    except (TypeError, ValueError):
        return False
    return True
