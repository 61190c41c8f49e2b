"""The size of a computed value, measured before it is stored.

A value is refused by its size as JSON: an expression may repeat one large value so often that
writing it, only to count its bytes, would exhaust the memory. So its parts are counted, level by
level, and the count ends at the limit.
"""

from __future__ import annotations

from typing import Protocol

from flowengine.errors import FlowengineError
from flowengine.program.compact_json import encoder
from flowengine.program.nodes import Json

#: Most bytes that one character takes as JSON: two escapes of a surrogate pair.
_MOST_PER_CHARACTER = 12
_written = encoder(allow_nan=True)
_SCALARS = frozenset({int, float, bool, type(None)})


class EvaluationError(FlowengineError):
    """An expression has no value: a type does not fit, an attribute is absent, …"""

    kind = "EvaluationError"  #: the type of the step's error


class ValueTooLarge(EvaluationError):
    """A computed value exceeds a limit."""

    kind = "TooLarge"


class ValueLimits(Protocol):
    """The limits of computed values."""

    @property
    def max_computed_bytes(self) -> int: ...

    @property
    def max_json_depth(self) -> int: ...


def checked_size(value: Json, limits: ValueLimits) -> int:
    """Return the least number of bytes of a value as JSON; raise `ValueTooLarge` at a limit."""
    kind = type(value)
    if kind in _SCALARS:
        return 4
    most = limits.max_computed_bytes
    size = len(value) + 2 if isinstance(value, str) else _size_of_parts(value, limits)
    if size <= most < size * _MOST_PER_CHARACTER:
        size = len(_written(value))
    if size > most:
        raise too_many_bytes(most)
    return size


def too_many_bytes(most: int) -> ValueTooLarge:
    return ValueTooLarge(
        f"the value takes more than {most:,} bytes as JSON, which is the limit (setting "
        "max_computed_bytes): pass the address of the data instead, or raise the limit"
    )


def _size_of_parts(value: Json, limits: ValueLimits) -> int:
    size, level = 0, [value]
    for _ in range(limits.max_json_depth):
        inner: list[Json] = []
        for part in level:
            if isinstance(part, str):
                size += len(part) + 2
            elif isinstance(part, list):
                size += len(part) + 1
                inner += part
            elif isinstance(part, dict):
                size += sum(len(name) + 4 for name in part) + 1
                inner += part.values()
            else:
                size += 1
            if size > limits.max_computed_bytes:
                return size
        if not inner:
            return size
        level = inner
    if not any(isinstance(part, list | dict) for part in level):
        return size + sum(len(part) + 2 if isinstance(part, str) else 1 for part in level)
    raise ValueTooLarge(
        f"the value has more than {limits.max_json_depth} lists and maps inside each other, which "
        "is the limit (setting max_json_depth): nest less, or raise the limit"
    )
