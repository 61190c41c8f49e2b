"""The message coordinator for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from flowengine.errors import MessageCoordinatorError
from flowengine.messaging.drivers import AsyncClient, AsyncDriver, Plan, RedisErrors, describe
from flowengine.messaging.interfaces import MessageCoordinator, MessageMetrics
from flowengine.messaging.keys import Keys
from flowengine.messaging.metrics import MetricsRecorder
from flowengine.messaging.models import (
    AgentId,
    AgentMessage,
    CoordinatorConfig,
    DeadLetter,
    FailureType,
    MessageResult,
    MessageSubscription,
    MessageType,
    QueueDepths,
    ReceivedMessage,
)
from flowengine.messaging.queue_plans import QueuePlans, subscription_for
from flowengine.messaging.request_plans import RequestPlans
from flowengine.messaging.script_calls import ScriptCalls
from flowengine.messaging.send_plans import SendPlans

T = TypeVar("T")


class RedisMessageCoordinator(MessageCoordinator):
    """Sends and receives messages over `redis.asyncio`; the tasks of one loop may share it.

    Every operation is atomic. An operation that raises `MessageCoordinatorError` took effect
    completely or not at all, and may be repeated: a message with the same id is not enqueued twice.
    A cancelled `receive` returns its messages to the queue.
    """

    def __init__(
        self, redis: AsyncClient, key_prefix: str = "ao", metrics: MessageMetrics | None = None
    ) -> None:
        self._driver = AsyncDriver(redis, before=self._write_subscriptions)
        self._writer = AsyncDriver(redis)
        calls, recorder = ScriptCalls(Keys(key_prefix)), MetricsRecorder(metrics)
        self._sends = SendPlans(calls, recorder)
        self._queue = QueuePlans(calls, recorder)
        self._requests = RequestPlans(calls.keys, self._sends)
        self._unwritten: list[MessageSubscription] = []
        self._writing: asyncio.Task[None] | None = None

    # --- sending ---

    async def send_message(
        self,
        sender: AgentId,
        recipient: AgentId,
        message: AgentMessage,
        *,
        delay: float = 0.0,
        expires_in: float | None = None,
    ) -> MessageResult:
        """Send a message; it is available after `delay` seconds and expires after `expires_in`."""
        (result,) = await self.send_batch(
            sender, recipient, [message], delay=delay, expires_in=expires_in
        )
        return result

    async def send_batch(
        self,
        sender: AgentId,
        recipient: AgentId,
        messages: Sequence[AgentMessage],
        *,
        delay: float = 0.0,
        expires_in: float | None = None,
    ) -> list[MessageResult]:
        """Send messages to one agent; the results are in the same order."""
        plan = self._sends.send(sender, recipient, messages, delay, expires_in)
        return await self._run(f"send to {recipient}", plan)

    async def broadcast_message(
        self, sender: AgentId, message: AgentMessage, recipients: list[AgentId]
    ) -> list[MessageResult]:
        """Send a message to several agents; a result reports a failed send."""
        plan = self._sends.broadcast(sender, message, recipients)
        return await self._run("broadcast", plan)

    # --- receiving ---

    async def receive(
        self, agent_id: AgentId, visibility_timeout: float = 5, *, timeout: float | None = None
    ) -> ReceivedMessage | None:
        """Reserve the next message; wait up to `timeout` seconds for one."""
        received = await self.receive_batch(agent_id, 1, visibility_timeout, timeout=timeout)
        return received[0] if received else None

    async def receive_batch(
        self,
        agent_id: AgentId,
        max_messages: int,
        visibility_timeout: float = 5,
        *,
        timeout: float | None = None,
    ) -> list[ReceivedMessage]:
        """Reserve up to `max_messages` (500 at most); wait up to `timeout` for the first."""
        plan = self._queue.receive(agent_id, max_messages, visibility_timeout, timeout)
        return await self._run(f"receive for {agent_id}", plan)

    async def ack(self, agent_id: AgentId, token: str) -> bool:
        """Acknowledge a processed message; False, without effect, if its reservation ended."""
        (settled,) = await self.ack_batch(agent_id, [token])
        return settled

    async def ack_batch(self, agent_id: AgentId, tokens: Sequence[str]) -> list[bool]:
        """Acknowledge several messages; the results are in the same order."""
        return await self._run(f"acknowledge for {agent_id}", self._queue.ack(agent_id, tokens))

    async def nack(
        self,
        agent_id: AgentId,
        token: str,
        failure: FailureType = FailureType.TRANSIENT,
        error: str | None = None,
    ) -> bool:
        """Schedule a retry of a message, or make it a dead letter; False as for `ack`."""
        plan = self._queue.nack(agent_id, token, failure, error)
        return await self._run(f"reject a message for {agent_id}", plan)

    async def extend(self, agent_id: AgentId, token: str, visibility_timeout: float) -> bool:
        """Set the deadline to `visibility_timeout` seconds from now; False as for `ack`."""
        plan = self._queue.extend(agent_id, token, visibility_timeout)
        return await self._run(f"extend a reservation for {agent_id}", plan)

    async def recover_pending(self, agent_id: AgentId | None = None) -> int:
        """Return messages with an expired reservation to the queue.

        `receive` does this for its own agent.
        """
        return await self._run("recover reservations", self._queue.recover(agent_id))

    # --- requests ---

    async def request(
        self, sender: AgentId, recipient: AgentId, message: AgentMessage, *, timeout: float
    ) -> AgentMessage:
        """Send a request and wait for the response; raise `RequestTimeout` without one."""
        plan = self._requests.request(sender, recipient, message, timeout)
        return await self._run(f"send a request to {recipient}", plan)

    async def respond(self, request: ReceivedMessage, payload: Mapping[str, Any]) -> bool:
        """Respond to a request; False if the requester no longer waits.

        The request must still be acknowledged.
        """
        return await self._run("respond to a request", self._requests.respond(request, payload))

    # --- inspection and dead letters ---

    async def depths(self, agent_id: AgentId) -> QueueDepths:
        """The number of messages of an agent by state, and the age of the oldest."""
        return await self._run(f"inspect {agent_id}", self._queue.depths(agent_id))

    async def dead_letters(
        self, agent_id: AgentId, *, first: int = 0, limit: int = 100
    ) -> list[DeadLetter]:
        """Dead letters, the oldest first."""
        plan = self._queue.dead_letters(agent_id, first, limit)
        return await self._run(f"inspect {agent_id}", plan)

    async def dead_letter(self, agent_id: AgentId, message_id: str) -> DeadLetter | None:
        """The dead letter with this id."""
        plan = self._queue.dead_letter(agent_id, message_id)
        return await self._run(f"inspect {agent_id}", plan)

    async def requeue_dead_letters(
        self, agent_id: AgentId, message_ids: Sequence[str] | None = None, *, limit: int = 1000
    ) -> int:
        """Requeue these dead letters, or the oldest, while there is room; their number."""
        plan = self._queue.requeue(agent_id, message_ids, limit)
        return await self._run(f"requeue for {agent_id}", plan)

    async def purge_dead_letters(
        self, agent_id: AgentId, message_ids: Sequence[str] | None = None, *, limit: int = 1000
    ) -> int:
        """Delete these dead letters, or the oldest; their number."""
        plan = self._queue.purge(agent_id, message_ids, limit)
        return await self._run(f"purge for {agent_id}", plan)

    async def configure(
        self,
        *,
        queue_size: int | None = None,
        retry_attempts: int | None = None,
        backoff_base: float | None = None,
        backoff_factor: float | None = None,
        backoff_max: float | None = None,
        backoff_jitter: float | None = None,
        fairness: int | None = None,
        dedup_window: float | None = None,
        dlq_size: int | None = None,
    ) -> None:
        """Change the `CoordinatorConfig` of all processes with this key prefix."""
        changes = {name: value for name, value in locals().items() if name != "self"}
        await self._run("configure", self._queue.configure(changes))

    async def configuration(self) -> CoordinatorConfig:
        """The current configuration."""
        return await self._run("read the configuration", self._queue.configure({}))

    # --- subscriptions ---

    def subscribe_to_messages(
        self, agent_id: AgentId, message_types: list[MessageType]
    ) -> MessageSubscription:
        """Limit an agent to these types and those of its other subscriptions.

        The subscription is written in the background, but before the next operation of this
        coordinator; `settle` waits for it.
        """
        subscription = subscription_for(agent_id, message_types)
        if message_types:
            self._unwritten.append(subscription)
            with suppress(RuntimeError):  # without a loop the next operation writes it
                self._writing = asyncio.get_running_loop().create_task(self._write_in_background())
        return subscription

    async def unsubscribe(self, subscription: MessageSubscription) -> bool:
        """End a subscription; an agent without subscriptions takes all types."""
        plan = self._queue.unsubscribe(subscription)
        return await self._run(f"unsubscribe {subscription.agent_id}", plan)

    async def settle(self) -> None:
        """Write pending subscriptions."""
        try:
            await self._write_subscriptions()
        except RedisErrors as error:
            raise MessageCoordinatorError("write subscriptions", describe(error)) from error

    async def _write_in_background(self) -> None:
        with suppress(*RedisErrors):  # the next operation raises it
            await self._write_subscriptions()

    async def _write_subscriptions(self) -> None:
        while self._unwritten:
            subscription = self._unwritten[0]
            await self._writer.run(self._queue.subscribe(subscription))
            with suppress(ValueError):  # a concurrent operation wrote it: idempotent
                self._unwritten.remove(subscription)

    async def _run(self, action: str, plan: Plan[T]) -> T:
        try:
            return await self._driver.run(plan)
        except RedisErrors as error:
            raise MessageCoordinatorError(action, describe(error)) from error
