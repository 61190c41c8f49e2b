"""The agent SDK: agents that need the database and no broker.

It stands beside the Celery tasks, on the same worker, and does not know Celery.
"""

from flowengine.engine.event_changes import EventChange
from flowengine.engine.event_feed import EventFeed
from flowengine.evaluator import EventDefinition, EventState
from flowengine.evaluator.states import EVENT_TRANSITIONS
from flowengine.sdk.agent_poller import AgentPoller
from flowengine.sdk.claude_agent_runner import ClaudeAgentRunner
from flowengine.sdk.config import AgentPollerConfig, RunnerConfig
from flowengine.sdk.events import STEP_CONTINUE, EventDispatcher, EventManager, LocalEventHandler
from flowengine.sdk.handlers import Callback
from flowengine.sdk.runner_service import RunnerService
from flowengine.sdk.tool_registry import ToolRegistry
from flowengine.store.work_locks import LockDefinition, LockMetaData

__all__ = [
    "EVENT_TRANSITIONS",
    "STEP_CONTINUE",
    "AgentPoller",
    "AgentPollerConfig",
    "Callback",
    "ClaudeAgentRunner",
    "EventChange",
    "EventDefinition",
    "EventDispatcher",
    "EventFeed",
    "EventManager",
    "EventState",
    "LocalEventHandler",
    "LockDefinition",
    "LockMetaData",
    "RunnerConfig",
    "RunnerService",
    "ToolRegistry",
]
