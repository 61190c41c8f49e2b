"""Python's garbage collector waits until a commit is made.

What is evaluated are thousands of small objects that all live until it is written. The collector
would look through them, and through everything the process has imported, again and again, and
find nothing: a fifth of the time it takes to take in the results of a wide fan-out.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    was_on = gc.isenabled()  # where somebody has turned it off it stays off
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
