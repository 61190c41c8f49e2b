"""The engine: starts, evaluates and reads runs. See `engine.Engine`.

Its parts are imported with the first use of `Engine` or `Run`: a command that only reads rows needs
a third of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flowengine.engine.results import ExecutionResult, ExecutionStatus, RunInfo, StepInfo

if TYPE_CHECKING:
    from flowengine.engine.engine import Engine
    from flowengine.engine.handles import Run

__all__ = ["Engine", "ExecutionResult", "ExecutionStatus", "Run", "RunInfo", "StepInfo"]


_HOMES = {"Engine": "engine", "Run": "handles"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
