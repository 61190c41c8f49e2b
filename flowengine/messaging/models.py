"""What agents send each other, and what is told about it.

`AgentMessage` is what an agent writes. `QueueMessage` is the same on its way: with the time it
was taken in and what became of it so far. `ReceivedMessage` adds the right to settle it.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum, StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class AgentId(BaseModel):
    """Who sends or receives: a type of agent and, in a pool, which of them."""

    model_config = ConfigDict(frozen=True)

    #: e.g. ``input_processor``
    type: str = Field(min_length=1)
    #: None and ``default`` are the same agent
    instance: str | None = None

    def __str__(self) -> str:
        return f"{self.type}/{self.instance or 'default'}"


class MessagePriority(int, Enum):
    """What is HIGH is received before what is NORMAL, and that before what is LOW."""

    LOW = 1
    NORMAL = 5
    HIGH = 9


class MessageType(StrEnum):
    """What a message is for; an agent may subscribe to some of them only."""

    REQUEST = "request"
    RESPONSE = "response"
    EVENT = "event"


class FailureType(StrEnum):
    """Why a message could not be dealt with."""

    TRANSIENT = "transient"  #: tried again after a wait
    PERMANENT = "permanent"  #: not tried again: a dead letter
    TIMEOUT = "timeout"  #: tried again after a wait; also given to what expired


class AgentMessage(BaseModel):
    """What one agent tells another."""

    #: a second message of the same id to the same agent is the first one
    message_id: str = Field(min_length=6)
    sender: AgentId
    recipient: AgentId
    message_type: MessageType
    payload: dict[str, Any] = Field(default_factory=dict)
    priority: MessagePriority = MessagePriority.NORMAL
    #: ISO 8601; filled in when the message is sent
    timestamp: str | None = None
    #: the id of the request that this belongs to
    correlation_id: str | None = None


class MessageResult(BaseModel):
    """Whether a message was taken in."""

    message_id: str
    delivered: bool
    #: ``queue full`` or ``not subscribed`` when it was refused; for a broadcast also what failed
    error: str | None = None
    #: it was taken in before, and was not taken in again
    duplicate: bool = False


class QueueMessage(BaseModel):
    """A message on its way."""

    message: AgentMessage
    priority: MessagePriority = MessagePriority.NORMAL
    #: ISO 8601, by the clock of Redis
    enqueued_at: str | None = None
    #: how often it was handed out before, without having been acknowledged
    delivery_attempts: int = 0
    #: what the last of those attempts ended with
    last_error: str | None = None


class ReceivedMessage(BaseModel):
    """A message that is reserved for whoever holds the token."""

    token: str
    queue_message: QueueMessage
    #: ISO 8601, by the clock of Redis: past this the message is anybody's again
    visibility_deadline: str | None = None

    @property
    def message(self) -> AgentMessage:
        return self.queue_message.message


class MessageSubscription(BaseModel):
    """That an agent takes messages of these types."""

    subscription_id: str
    agent_id: AgentId
    message_types: list[MessageType]


class DeadLetter(BaseModel):
    """A message that nobody will receive, and why."""

    message_id: str
    failure: FailureType
    error: str
    #: how often it was handed out
    attempts: int
    died_at: datetime
    #: None when what is stored cannot be read as a message
    message: AgentMessage | None
    #: what is stored, for those that cannot be read
    raw: bytes = Field(repr=False)


class QueueDepths(BaseModel):
    """How much waits for one agent."""

    #: can be received now, by priority
    ready: dict[MessagePriority, int]
    #: sent with a delay, or waiting to be tried again
    delayed: int
    #: handed out and not settled
    reserved: int
    #: what counts against `queue_size`: ready, delayed and reserved together
    total: int
    #: seconds since the oldest of these was sent; None when there is none
    oldest_age: float | None
    #: in the dead-letter queue
    dead: int
    #: dead letters that were dropped because there were too many
    dead_dropped: int


class CoordinatorConfig(BaseModel):
    """The configuration that all processes with one key prefix share."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    #: most messages that may be ready, delayed or reserved for one agent
    queue_size: int = Field(default=10_000, ge=1)
    #: how often a message is handed out again after the first time
    retry_attempts: int = Field(default=3, ge=0)
    #: seconds before the first retry
    backoff_base: float = Field(default=1.0, ge=0)
    #: by how much each wait is longer than the one before
    backoff_factor: float = Field(default=2.0, ge=1)
    #: no wait is longer, in seconds
    backoff_max: float = Field(default=30.0, ge=0)
    #: by how much of itself a wait may be shortened at random; 0: never
    backoff_jitter: float = Field(default=0.0, ge=0, le=1)
    #: of so many deliveries one goes to who has waited longest, whatever its priority; 0: none
    fairness: int = Field(default=0, ge=0)
    #: seconds for which the id of an acknowledged message is not taken in again
    dedup_window: float = Field(default=60.0, ge=0)
    #: most dead letters of one agent; the oldest are dropped
    dlq_size: int = Field(default=10_000, ge=1)


class Agent(BaseModel):
    """What a registry is told about an agent. Change it, and the next heartbeat tells it."""

    agent_id: AgentId
    name: str
    #: anything that others should know, e.g. its load
    status: dict[str, Any] = Field(default_factory=dict)
    capabilities: set[str] = Field(default_factory=set)


class AgentEvent(BaseModel):
    """Something that happened to an agent, as it is published."""

    #: ``registered``, ``lost``, ``recovered`` or ``deregistered``
    event: str
    agent_id: AgentId
    name: str
    #: seconds since the epoch, by the clock of Redis
    timestamp: float
