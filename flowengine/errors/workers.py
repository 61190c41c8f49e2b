"""Errors of questions about workers."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.errors.flowengine_error import FlowengineError


@dataclass(eq=False, repr=False)
class UnknownWorker(FlowengineError, LookupError):
    """No worker of that name has ever registered."""

    name: str
    near: tuple[str, ...] = ()  #: the most similar names

    def __str__(self) -> str:
        hint = f"; did you mean {' or '.join(map(repr, self.near))}?" if self.near else ""
        return f"there is no worker {self.name!r}{hint}; `flowengine workers` shows all that run"
