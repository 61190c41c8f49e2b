"""Values that differ from run to run and not from replay to replay; none of them has a row.

Outside of a durable function they are those of Python.
"""

from __future__ import annotations

import datetime
import random as python_random  # noqa: TID251 - outside of a run
import uuid as python_uuid

from flowengine.authoring.current_function import current_activation
from flowengine.authoring.locations import user_location
from flowengine.errors import FunctionMisuse

_BITS = 53  # of the mantissa of a float
_LONGEST = 100  # characters of the name of a change


def now() -> datetime.datetime:
    """Return the recorded time of the last end that the function heard, in UTC."""
    activation = current_activation()
    if activation is None:
        return datetime.datetime.now(datetime.UTC)  # noqa: TID251
    return datetime.datetime.fromtimestamp(activation.now_ms / 1000, datetime.UTC)


def uuid() -> python_uuid.UUID:
    """Return an id that follows from the step, the number of calls so far, and the draw."""
    activation = current_activation()
    if activation is None:
        return python_uuid.uuid4()  # noqa: TID251
    return python_uuid.UUID(bytes=activation.numbers.drawn("uuid"), version=4)


def random() -> float:
    """Return a number from 0 to below 1 that follows from the same as `uuid`."""
    activation = current_activation()
    if activation is None:
        return python_random.random()
    drawn = int.from_bytes(activation.numbers.drawn("random")) >> (128 - _BITS)
    return float(drawn) / (1 << _BITS)


def changed(name: str) -> bool:
    """Whether the function takes the part of its code that was added under this name.

    False in a run that has passed by this place before the part was there, and then for the rest of
    the run. True in all others.
    """
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST:
        raise FunctionMisuse(
            f"{user_location()}: the name of a change is a text of 1 to {_LONGEST} characters, "
            f"not {name!r}"
        )
    activation = current_activation()
    return activation is None or activation.numbers.changed(name)
