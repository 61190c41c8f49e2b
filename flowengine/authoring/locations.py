"""Locate the author's code: file and line for error messages."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import PurePath
from types import FrameType
from typing import Any

from flowengine.program.nodes import Location

_OURS = str(PurePath(__file__).parent) + os.sep
_OURS_KNOWN: set[str] = set()  #: files below it that were met
_PACKAGE = str(PurePath(__file__).parent.parent) + os.sep


def location_of(fn: Callable[..., Any]) -> Location:
    """Return the file and first line of a function; line 0 if it has no Python code."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        return Location(0, file=getattr(fn, "__module__", None) or "?")
    return Location(code.co_firstlineno, file=code.co_filename)


def user_location() -> Location:
    """Return the author's nearest line on the call stack."""
    frame = user_frame()
    if frame is None:
        return Location(0, file="?")
    return _location(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(maxsize=2_000)
def _location(file: str, line: int) -> Location:
    """Return the one location of a line: the same line makes the same call again and again."""
    return Location(line, file=file)


def user_frame() -> FrameType | None:
    """Return the author's nearest frame on the call stack.

    Skips frames of this package and of the standard library (``copy.deepcopy(symbol)``,
    ``map``-like callbacks), whose lines do not help the author.
    """
    frame: FrameType | None = sys._getframe(1)
    # Without a call of Python for each frame: every call of a durable function is located.
    ours = _OURS_KNOWN
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in ours:
            if not file.startswith(_OURS):
                break
            ours.add(file)
        frame = frame.f_back
    nearest = frame
    while frame is not None and _is_standard(frame.f_globals.get("__name__") or ""):
        frame = frame.f_back
    return frame or nearest


def is_internal(file: str) -> bool:
    """Whether a file belongs to flowengine or to Python's import system."""
    return file.startswith((_PACKAGE, "<frozen")) or file == importlib.__file__


@functools.lru_cache(maxsize=2_000)
def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names
