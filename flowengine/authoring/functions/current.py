"""The durable function that the code is running in, if any. This module does not load asyncio."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowengine.authoring.functions.activation import Activation

running: ContextVar[Activation | None] = ContextVar("flowengine_function", default=None)


def current_activation() -> Activation | None:
    """Return the activation of the function whose code calls."""
    return running.get()
