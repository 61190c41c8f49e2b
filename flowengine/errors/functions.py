"""Errors of durable functions and of their calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowengine.errors.flowengine_error import FlowengineError
from flowengine.errors.programs import AuthoringError


class StepFailed(FlowengineError):
    """A call of a durable function has failed.

    It is built from the stored error alone. Where the class of that error is loaded, it is an
    instance of that class too, so that ``except ToolRefused`` catches it; fields of that class are
    not stored.
    """

    def __init__(self, path: str, error_type: str, message: str) -> None:
        # Not `super()`: with another class as second base that is its constructor.
        self.args = (path, error_type, message)
        self.path, self.error_type, self.message = path, error_type, message
        self.record: Mapping[str, Any] = {"type": error_type, "message": message, "path": path}

    def __str__(self) -> str:
        return self.message


class FunctionMisuse(AuthoringError):
    """The body of a durable function does something that no replay could repeat."""


@dataclass(eq=False, repr=False)
class Divergence(FlowengineError):
    """The code of a durable function does not fit its record."""

    function: str
    number: int  #: of the call
    recorded: str  #: facet
    called: str  #: facet; empty: the code makes no call there
    line: str
    reason: str = ""

    def __str__(self) -> str:
        did = f"calls {self.called}" if self.called else "makes no call"
        return (
            f"{self.function} diverges from its record at call {self.number}: the record has "
            f"{self.recorded}, the code {self.reason or did} ({self.line}). Deploy code that fits, "
            'or put the new part under `if changed("…"):`'
        )
