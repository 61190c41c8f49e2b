"""What a coordinator and a registry promise, whatever they are built on."""

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
    """Messages between agents, each handed out until it is acknowledged or given up."""

    @abstractmethod
    async def send_message(
        self, sender: AgentId, recipient: AgentId, message: AgentMessage
    ) -> MessageResult:
        """Send a message to one agent; `MessageCoordinatorError` if that cannot be done."""

    @abstractmethod
    async def broadcast_message(
        self, sender: AgentId, message: AgentMessage, recipients: list[AgentId]
    ) -> list[MessageResult]:
        """Send a message to several agents; one result for each, in their order."""

    @abstractmethod
    def subscribe_to_messages(
        self, agent_id: AgentId, message_types: list[MessageType]
    ) -> MessageSubscription:
        """Let an agent have messages of these types only."""

    @abstractmethod
    async def receive(
        self, agent_id: AgentId, visibility_timeout: float = 5
    ) -> ReceivedMessage | None:
        """Reserve the next message for so many seconds; None when there is none."""

    @abstractmethod
    async def ack(self, agent_id: AgentId, token: str) -> bool:
        """Say that a message is dealt with; False when the reservation is no longer ours."""

    @abstractmethod
    async def nack(
        self,
        agent_id: AgentId,
        token: str,
        failure: FailureType = FailureType.TRANSIENT,
        error: str | None = None,
    ) -> bool:
        """Say that a message could not be dealt with; False as for `ack`."""

    @abstractmethod
    async def recover_pending(self, agent_id: AgentId | None = None) -> int:
        """Make expired reservations available again, of one agent or of all; how many."""

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
        """Change the configuration; what is None stays as it is."""


class AgentRegistry(ABC):
    """Which agents there are, and whether they live."""

    @abstractmethod
    def register(self, agent: Agent) -> None:
        """Make an agent known."""

    @abstractmethod
    def deregister(self, agent_id: AgentId) -> None:
        """Forget an agent."""

    @abstractmethod
    async def list_registered(self) -> list[dict[str, Any]]:
        """All agents: `name`, `agent_id`, `status`, `alive`, `last_heartbeat`, `capabilities`."""

    @abstractmethod
    def start_heartbeats(self) -> None:
        """Tell from now on, again and again, that our agents live."""

    @abstractmethod
    def stop_heartbeats(self) -> None:
        """Tell it no more."""


class MessageMetrics(Protocol):
    """Where a coordinator counts. A method that raises does not disturb a delivery."""

    def inc_delivered_ok(self, count: int) -> None:
        """Messages were taken in."""

    def inc_delivered_error(self, count: int) -> None:
        """Messages were refused, or could not be sent."""

    def inc_retries_scheduled(self, count: int, last_backoff_seconds: float) -> None:
        """Messages will be tried again, the last of them after so many seconds."""

    def inc_nacks(self, count: int) -> None:
        """Messages were negatively acknowledged."""

    def inc_permanent(self, count: int) -> None:
        """Messages became dead letters."""
