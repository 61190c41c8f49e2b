"""Payloads as JSON: a value that JSON cannot carry is refused with its path.

pydantic would write a NaN as null, a set as a list and bytes as text, so that the recipient gets
another value than the sender gave.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flowengine.errors import NotSendable

#: How deep lists and maps may be nested: the recipient's parser refuses more than 200 levels.
_MAX_DEPTH = 190

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


def payload_json(payload: Mapping[str, Any], what: str, place: str = "payload") -> str:
    """Return the payload as JSON; raise NotSendable for the first value that it cannot carry."""
    try:
        text = _encode(payload)
        is_sound = _is_sound(payload) and (text.isascii() or text.encode())
    except (TypeError, ValueError, RecursionError):  # among them that of a lone surrogate
        is_sound = False
    if not is_sound:
        raise NotSendable(what, *_first_invalid(payload, place))
    return text


def _is_sound(payload: Mapping[str, Any]) -> bool:
    """Whether all keys are text, and the nesting is within the limit.

    `json` writes the key 1 as "1", which is another key.
    """
    level: list[Any] = [payload]
    for _ in range(_MAX_DEPTH):
        below = []
        for part in level:
            if isinstance(part, dict):
                for key, value in part.items():
                    if not isinstance(key, str):
                        return False
                    if isinstance(value, dict | list | tuple):
                        below.append(value)
            else:
                below += [value for value in part if isinstance(value, dict | list | tuple)]
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
