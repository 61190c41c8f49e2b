"""Messages between agents over Redis, a registry of agents, and a circuit breaker.

Independent of workflows. Needs ``flowengine[redis]``; `flowengine.messaging.prometheus` needs
``flowengine[prometheus]``.
"""

from flowengine.circuit_breaker import CircuitBreakerConfig, CircuitSnapshot, CircuitState, Permit
from flowengine.errors import (
    AgentRegistryError,
    CircuitBreakerOpenError,
    MessageCoordinatorError,
    RequestTimeout,
)
from flowengine.messaging.breaker import CircuitBreaker, SyncCircuitBreaker
from flowengine.messaging.coordinator import RedisMessageCoordinator, SyncMessageCoordinator
from flowengine.messaging.interfaces import AgentRegistry, MessageCoordinator, MessageMetrics
from flowengine.messaging.models import (
    Agent,
    AgentEvent,
    AgentId,
    AgentMessage,
    CoordinatorConfig,
    DeadLetter,
    FailureType,
    MessagePriority,
    MessageResult,
    MessageSubscription,
    MessageType,
    QueueDepths,
    QueueMessage,
    ReceivedMessage,
)
from flowengine.messaging.registry import RedisAgentRegistry

__all__ = [  # noqa: RUF022 - grouped
    # Messages
    "RedisMessageCoordinator",
    "SyncMessageCoordinator",
    "AgentId",
    "AgentMessage",
    "MessagePriority",
    "MessageType",
    "MessageResult",
    "QueueMessage",
    "ReceivedMessage",
    "FailureType",
    "MessageSubscription",
    "DeadLetter",
    "QueueDepths",
    "CoordinatorConfig",
    # Agents
    "RedisAgentRegistry",
    "Agent",
    "AgentEvent",
    # Circuit breakers
    "CircuitBreaker",
    "SyncCircuitBreaker",
    "CircuitBreakerConfig",
    "CircuitSnapshot",
    "CircuitState",
    "Permit",
    # Interfaces
    "MessageCoordinator",
    "AgentRegistry",
    "MessageMetrics",
    # Errors
    "MessageCoordinatorError",
    "RequestTimeout",
    "AgentRegistryError",
    "CircuitBreakerOpenError",
]
