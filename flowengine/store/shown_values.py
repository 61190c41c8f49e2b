"""Stored values as people see them: one that cannot be read is a placeholder, which says why.

For lists and pages: a row whose key this process does not have, or that was damaged, keeps its
place, its state and its times. The engine itself reads with `codec`, which raises: a placeholder
must never be taken for a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from flowengine.errors import PayloadUnreadable
from flowengine.evaluator import Step, TaskDefinition
from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.records import STEP_COLUMNS, TASK_COLUMNS, step_from, task_from

#: Raised by reading a value without its key, or a damaged one.
UNREADABLE = (PayloadUnreadable, ValueError, AttributeError, RecursionError)
_MARK = "unreadable"
_ERROR_FIELDS = ("path", "type", "message")
_PARAMS, _RETURNS, _ERROR, _PATH = map(STEP_COLUMNS.index, ("params", "returns", "error", "path"))
_TASK_ERROR = TASK_COLUMNS.index("error")
#: Columns of a step that lists and pages do not show.
_HIDDEN = tuple(map(STEP_COLUMNS.index, ("failure", "yields", "heard")))


class Unreadable(dict[str, Any]):
    """A placeholder: a map with the reason, so that it is shown as the value would be."""

    @classmethod
    def because(cls, why: str, **shown: Any) -> Self:
        return cls({**shown, _MARK: why})  # `dataclasses.asdict` makes copies, of the items alone

    @property
    def why(self) -> str:
        return str(self[_MARK])


def readable(values: Any) -> Any:
    """Return a value; raise PayloadUnreadable if it is a placeholder."""
    if isinstance(values, Unreadable):
        raise PayloadUnreadable(values.why)
    return values


def shown_value(text: str | None) -> Json:
    """Decode a value, or return its placeholder."""
    try:
        return codec.load(text)
    except UNREADABLE as problem:
        return Unreadable.because(_reason(problem))


def shown_attributes(text: str | None) -> dict[str, Any]:
    """Decode a map of attributes, or return its placeholder; large values stay references."""
    try:
        return codec.attributes(text)
    except UNREADABLE as problem:
        return Unreadable.because(_reason(problem))


def shown_error(text: str | None, path: str, kind: str | None = None) -> dict[str, Any] | None:
    """Decode an error, or return its placeholder: an error of that path and type.

    `kind` is the type of the error, if it is known without the value.
    """
    found = shown_value(text)
    if isinstance(found, dict) and not isinstance(found, Unreadable):
        if all(isinstance(found.get(name), str) for name in _ERROR_FIELDS[1:]):
            return found
    elif found is None:
        return None
    if not isinstance(found, Unreadable):
        found = Unreadable.because("it was changed: it is not the record of an error")
    message = str(PayloadUnreadable(found.why))
    kind = kind or PayloadUnreadable.__name__
    return Unreadable.because(found.why, path=path, type=kind, message=message)


def shown_step(row: Sequence[Any]) -> Step:
    """Decode a step from the values of STEP_COLUMNS, with placeholders."""
    values = list(row)
    for column in (_PARAMS, _RETURNS, _ERROR, *_HIDDEN):
        values[column] = None
    step = step_from(values)
    step.params, step.returns = shown_attributes(row[_PARAMS]), shown_attributes(row[_RETURNS])
    step.error = shown_error(row[_ERROR], row[_PATH])
    return step


def shown_task(row: Sequence[Any], data: dict[str, Any] | None) -> TaskDefinition:
    """Decode a task from the values of TASK_COLUMNS, which the row begins with."""
    values = list(row)
    values[_TASK_ERROR] = None
    task = task_from(values, data)
    task.error = shown_error(row[_TASK_ERROR], task.step_path)
    return task


def _reason(problem: Exception) -> str:
    if isinstance(problem, PayloadUnreadable):
        return str(problem.args[0])
    return f"it was changed, or written by another program: {problem}"
