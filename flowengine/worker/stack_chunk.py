"""Room on Python's data stack for the code of users."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: Values in the frame of `on_own_stack_chunk`. A chunk holds 2,000 values, doubled until the frame
#: fits with 1,000 to spare: here 16,000. The rest has room for some hundred calls.
_FRAME_SIZE = 12_000


def on_own_stack_chunk(function: Callable[P, R]) -> Callable[P, R]:
    """Call a function at the beginning of a new chunk of Python's data stack.

    CPython keeps frames in chunks, allocates a chunk when the current one is full, and frees it
    when its first frame returns. Code that calls functions across the end of a chunk allocates and
    frees memory at every call: thirty times slower, as measured. Below Celery and this package a
    user's function is about eighty calls deep, so the position in the chunk is arbitrary. A frame
    larger than the rest of the chunk begins a new one, with free space behind it.
    """

    def with_large_frame(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    with_large_frame.__code__ = with_large_frame.__code__.replace(co_stacksize=_FRAME_SIZE)
    return functools.wraps(function)(with_large_frame)
