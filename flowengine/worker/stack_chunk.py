"""Room on Python's stack for the code of users.

Python keeps the frames of running functions in chunks, takes a chunk from the system when one is
full, and gives it back as soon as its first frame returns. Code that happens to call functions
across the end of a chunk takes and gives back memory at every call: we have seen it thirty times
as slow. Where a chunk ends depends on how deep the caller is, and behind Celery and this package
a user's function is some eighty calls deep. A frame that does not fit into what is left begins a
chunk of its own, with room behind it; so we make one that never fits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Values that the frame could hold. A chunk holds 2,000, doubled until what is asked for fits
#: with 1,000 to spare: here 16,000, and what is left is room for some hundred calls.
_SIZE = 12_000


def on_own_stack_chunk(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function, and what it calls, have a chunk of the stack for itself."""

    def roomy(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return function(*args, **kwargs)

    roomy.__code__ = roomy.__code__.replace(co_stacksize=_SIZE)
    return functools.wraps(function)(roomy)
