"""Interfaces of a coordinator, a registry and a metrics sink, independent of Redis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from flowengine.messaging.models import (
    Agent,
    AgentId,
    AgentMessage,
    FailureType,
    MessageResult,
    MessageSubscription,
    MessageType,
    ReceivedMessage,
)


class MessageCoordinator(ABC):
    """Messages between agents, redelivered until acknowledged or dead-lettered."""

    @abstractmethod
    async def send_message(
        self, sender: AgentId, recipient: AgentId, message: AgentMessage
    ) -> MessageResult:
        """Send a message to one agent; raise `MessageCoordinatorError` if delivery fails."""

    @abstractmethod
    async def broadcast_message(
        self, sender: AgentId, message: AgentMessage, recipients: list[AgentId]
    ) -> list[MessageResult]:
        """Send a message to several agents; the results are in the same order."""

    @abstractmethod
    def subscribe_to_messages(
        self, agent_id: AgentId, message_types: list[MessageType]
    ) -> MessageSubscription:
        """Limit an agent to messages of these types."""

    @abstractmethod
    async def receive(
        self, agent_id: AgentId, visibility_timeout: float = 5, *, timeout: float | None = None
    ) -> ReceivedMessage | None:
        """Reserve the next message for `visibility_timeout` seconds; None if there is none.

        With `timeout`, wait up to `timeout` seconds for one.
        """

    @abstractmethod
    async def ack(self, agent_id: AgentId, token: str) -> bool:
        """Acknowledge a processed message; False if its reservation ended."""

    @abstractmethod
    async def nack(
        self,
        agent_id: AgentId,
        token: str,
        failure: FailureType = FailureType.TRANSIENT,
        error: str | None = None,
    ) -> bool:
        """Reject a message: retry it or make it a dead letter; False as for `ack`."""

    @abstractmethod
    async def recover_pending(self, agent_id: AgentId | None = None) -> int:
        """Return messages with an expired reservation to the queue; their number."""

    @abstractmethod
    async def configure(
        self,
        *,
        queue_size: int | None = None,
        retry_attempts: int | None = None,
        backoff_base: float | None = None,
        backoff_factor: float | None = None,
        backoff_max: float | None = None,
    ) -> None:
        """Change the configuration; None leaves a value unchanged."""


class AgentRegistry(ABC):
    """Registration and liveness of agents."""

    @abstractmethod
    def register(self, agent: Agent) -> None:
        """Register an agent."""

    @abstractmethod
    def deregister(self, agent_id: AgentId) -> None:
        """Deregister an agent."""

    @abstractmethod
    async def list_registered(self) -> list[dict[str, Any]]:
        """All agents: `name`, `agent_id`, `status`, `alive`, `last_heartbeat`, `capabilities`."""

    @abstractmethod
    def start_heartbeats(self) -> None:
        """Start sending heartbeats for the agents of this registry."""

    @abstractmethod
    def stop_heartbeats(self) -> None:
        """Stop sending heartbeats."""


class MessageMetrics(Protocol):
    """A sink for counts. An error in it does not affect deliveries."""

    def inc_delivered_ok(self, count: int) -> None:
        """Messages were enqueued."""

    def inc_delivered_error(self, count: int) -> None:
        """Messages were refused, or sending failed."""

    def inc_retries_scheduled(self, count: int, last_backoff_seconds: float) -> None:
        """Retries were scheduled, the last one after `last_backoff_seconds`."""

    def inc_nacks(self, count: int) -> None:
        """Messages were negatively acknowledged."""

    def inc_permanent(self, count: int) -> None:
        """Messages became dead letters."""
