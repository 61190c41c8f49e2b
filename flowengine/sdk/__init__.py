"""The agent SDK: agents that need the database and no broker.

It stands beside the Celery tasks, on the same worker, and does not know Celery.
"""

from flowengine.sdk.agent_poller import AgentPoller
from flowengine.sdk.config import AgentPollerConfig
from flowengine.sdk.handlers import Callback
from flowengine.sdk.tool_registry import ToolRegistry

__all__ = ["AgentPoller", "AgentPollerConfig", "Callback", "ToolRegistry"]
