"""The agent SDK: agents that need the database and no broker.

It stands beside the Celery tasks, on the same worker, and does not know Celery.
"""

from flowengine.sdk.agent_poller import AgentPoller
from flowengine.sdk.config import AgentPollerConfig, RunnerConfig
from flowengine.sdk.handlers import Callback
from flowengine.sdk.runner_service import RunnerService
from flowengine.sdk.tool_registry import ToolRegistry
from flowengine.store.work_locks import LockDefinition, LockMetaData

__all__ = [
    "AgentPoller",
    "AgentPollerConfig",
    "Callback",
    "LockDefinition",
    "LockMetaData",
    "RunnerConfig",
    "RunnerService",
    "ToolRegistry",
]
