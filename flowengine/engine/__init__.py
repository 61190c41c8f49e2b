"""The engine: starts, evaluates and reads runs. See `engine.Engine`."""

from flowengine.engine.engine import Engine
from flowengine.engine.handles import Run
from flowengine.engine.results import ExecutionResult, ExecutionStatus, RunInfo, StepInfo

__all__ = ["Engine", "ExecutionResult", "ExecutionStatus", "Run", "RunInfo", "StepInfo"]
