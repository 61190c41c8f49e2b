"""Errors of messages between agents, and of circuit breakers."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.errors.flowengine_error import FlowengineError


@dataclass(eq=False, repr=False)
class _OperationError(FlowengineError):
    action: str
    reason: str = ""

    def __str__(self) -> str:
        return f"cannot {self.action}: {self.reason}" if self.reason else self.action


class MessageCoordinatorError(_OperationError):
    """A messaging operation failed."""


class RequestTimeout(MessageCoordinatorError, TimeoutError):
    """No reply to a request arrived in time."""

    def __init__(self, recipient: str, message_id: str, seconds: float) -> None:
        super().__init__(recipient, message_id)
        self.args = (recipient, message_id, seconds)
        self.recipient, self.message_id, self.seconds = recipient, message_id, seconds

    def __str__(self) -> str:
        return (
            f"agent {self.recipient} did not answer request {self.message_id!r} within "
            f"{self.seconds:g} s; the request has expired with the wait"
        )


class AgentRegistryError(_OperationError):
    """A registry operation failed."""


@dataclass(eq=False, repr=False)
class CircuitBreakerOpenError(FlowengineError):
    """A call was refused because its circuit breaker is open."""

    name: str
    retry_after: float
    reason: str = ""

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"circuit breaker {self.name!r} is open{why}: try again in {self.retry_after:.1f} s"
