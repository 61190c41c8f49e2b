"""The class of all errors of flowengine.

Invariant: ``args`` are the constructor's arguments, because Celery and pickle rebuild an
exception as ``cls(*args)``. An error with fields is a dataclass, and composes its message of them.
"""

from __future__ import annotations

from typing import ClassVar


class FlowengineError(Exception):
    """The base class of all errors of flowengine."""

    #: The message of an error with fields, which it names in braces.
    _text: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())

    def __str__(self) -> str:
        return self._text.format_map(vars(self)) if self._text else super().__str__()

    def without_values(self) -> str:
        """The message for logs, which show the names of inputs and never their values."""
        return str(self)
