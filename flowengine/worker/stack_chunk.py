"""A chunk of Python's data stack for the code of users.

CPython keeps frames in chunks, allocates a chunk when the current one is full, and frees it when
its first frame returns. Code that calls functions across the end of a chunk allocates and frees
memory at every call: thirty times slower, as measured. Below Celery and this package a user's
function is about eighty calls deep, so the position in the chunk is arbitrary. A frame larger than
the rest of the chunk begins a new one, with free space behind it: `on_own_stack_chunk` makes such
a frame.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Values in the frame. A chunk holds 2,000 values, doubled until the frame fits with 1,000 to
#: spare: here 16,000. The rest has room for some hundred calls.
_SIZE = 12_000


def on_own_stack_chunk(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Call a function at the beginning of a new chunk."""

    def roomy(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return function(*args, **kwargs)

    roomy.__code__ = roomy.__code__.replace(co_stacksize=_SIZE)
    return functools.wraps(function)(roomy)
