"""Errors of calls, built from their records, and records of errors of functions.

A record names the class of an error and its bases, without modules. Live and replayed, an error is
built from that alone, so that code catches the same in both. A class is looked up by its name in
the module of the function, in that of the called code, among Python's and flowengine's errors, and
last among all that are loaded, if one alone has the name and the bases.
"""

from __future__ import annotations

import builtins
import functools
import traceback
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, cast

from flowengine import errors
from flowengine.authoring.locations import is_internal
from flowengine.errors import StepFailed

_ROOTS = (BaseException, object)
#: Bases that say nothing, and classes that the event loop gives a meaning of its own.
_NEVER = frozenset(
    {"Exception", "FlowengineError", "StepFailed", "StopIteration", "StopAsyncIteration"}
)

_MAX_SHOWN = 3  # errors of a group in its text

Names = Mapping[str, Any]  #: the global names of a module


class RebuiltErrors:
    """The errors of the calls of one function."""

    def __init__(self, function_names: Names) -> None:
        self._function_names = function_names
        self._classes: dict[tuple[str, tuple[str, ...], int], type[StepFailed]] = {}

    def error_of(self, record: Mapping[str, Any], code_names: Names) -> StepFailed:
        """Return the error of a record; `code_names` are those of the module of the called code."""
        kind, bases = str(record.get("type", "")), tuple(record.get("bases", ()))
        key = (kind, bases, id(code_names))
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = self._class_of(kind, bases, code_names)
        try:
            problem = found.__new__(found)
        except Exception:  # its class takes arguments that no record has
            problem = StepFailed.__new__(StepFailed)
        message = str(record.get("message", ""))
        StepFailed.__init__(problem, str(record.get("path", "")), kind, message)
        problem.record = record
        return problem

    def _class_of(self, kind: str, bases: tuple[str, ...], names: Names) -> type[StepFailed]:
        for at, name in enumerate((kind, *bases)):
            if name in _NEVER:
                continue
            found = class_of(name, bases[at:], (self._function_names, names))
            if found is not None:
                return _joined(cast(Hashable, found))
        return StepFailed


def class_of(
    kind: str, bases: tuple[str, ...] | None, modules: tuple[Names, ...]
) -> type[Exception] | None:
    """Return the class of an error by its name, and by its bases if they are known.

    It is looked for in these modules, in Python's and flowengine's errors, then in all loaded ones.
    """
    for near in (*modules, vars(builtins), vars(errors)):
        if _is_error(found := near.get(kind), kind):
            return cast(type[Exception], found)
    loaded = [one for one in _loaded(kind) if bases is None or _base_names(one) == list(bases)]
    return loaded[0] if len(loaded) == 1 else None


def _is_error(found: Any, name: str) -> bool:
    return isinstance(found, type) and issubclass(found, Exception) and found.__name__ == name


def _loaded(name: str) -> Iterator[type[Exception]]:
    """Yield the loaded classes of errors with a name."""
    waiting, seen = [Exception], set()
    while waiting:
        for one in waiting.pop().__subclasses__():
            if one not in seen:
                seen.add(one)
                waiting.append(one)
                if one.__name__ == name and not issubclass(one, StepFailed):
                    yield one


@functools.lru_cache(maxsize=256)
def _joined(found: Any) -> type[StepFailed]:
    """Return a class that is both StepFailed and the class of the error."""
    try:
        return type(found.__name__, (StepFailed, found), {"__module__": found.__module__})
    except Exception:  # its class cannot be combined, or refuses to
        return StepFailed


def _base_names(kind: type[BaseException]) -> list[str]:
    return [base.__name__ for base in kind.__mro__[1:] if base not in _ROOTS]


def record_of(problem: BaseException) -> dict[str, Any]:
    """Return the record of an error that ends a function; of a call's error, that of the call."""
    if isinstance(problem, StepFailed):
        return {name: value for name, value in problem.record.items() if name != "traceback"}
    kind = type(problem)
    message = _text(problem)
    frames = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if not is_internal(frame.filename)
    ]
    lines = [
        "Traceback (most recent call last):\n",
        *traceback.format_list(frames),
        *traceback.format_exception_only(kind, problem),
    ]
    return {
        "type": kind.__name__,
        "message": message,
        "traceback": "".join(lines),
        "bases": _base_names(kind),
    }


def _text(problem: BaseException) -> str:
    """Return the text of an error; that of a group names the errors in it, which the cause is."""
    try:
        text = str(problem) or type(problem).__name__
    except Exception as worse:
        return f"(its text could not be made: {type(worse).__name__})"
    if not isinstance(problem, BaseExceptionGroup):
        return text
    shown = [f"{_name(one)}: {_text(one)}" for one in problem.exceptions[:_MAX_SHOWN]]
    others = len(problem.exceptions) - len(shown)
    return f"{text}: {'; '.join(shown)}" + (f"; and {others} more" if others else "")


def _name(problem: BaseException) -> str:
    """Return the name of the class of an error; of a call's error, that of its record."""
    return problem.error_type if isinstance(problem, StepFailed) else type(problem).__name__
