"""Messages between agents over Redis, for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from flowengine.errors import MessageCoordinatorError
from flowengine.messaging.calling import Calling
from flowengine.messaging.counting import Counting
from flowengine.messaging.driving import AsyncClient, AsyncDriver, Plan, RedisTrouble, told
from flowengine.messaging.interfaces import MessageCoordinator, MessageMetrics
from flowengine.messaging.keys import Keys
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
from flowengine.messaging.queueing import Queueing, subscription_for
from flowengine.messaging.requesting import Requesting
from flowengine.messaging.sending import Sending

T = TypeVar("T")


class RedisMessageCoordinator(MessageCoordinator):
    """Sends and receives messages over `redis.asyncio`; one may serve many tasks of one loop.

    Every operation is atomic. One that ends with `MessageCoordinatorError` was done as a whole
    or not at all, and may be repeated: a message of the same id is not taken in twice.
    """

    def __init__(
        self,
        redis: AsyncClient,
        key_prefix: str = "ao",
        metrics: MessageMetrics | None = None,
    ) -> None:
        self._driver = AsyncDriver(redis, before=self._write_subscriptions)
        self._writer = AsyncDriver(redis)
        calling, counting = Calling(Keys(key_prefix)), Counting(metrics)
        self._sending = Sending(calling, counting)
        self._queueing = Queueing(calling, counting)
        self._requesting = Requesting(calling.keys, self._sending)
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
        """Send a message; it can be received after `delay` and until `expires_in` seconds."""
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
        """Send several messages to one agent; one result for each, in their order."""
        plan = self._sending.send(sender, recipient, messages, delay, expires_in)
        return await self._run(f"send to {recipient}", plan)

    async def broadcast_message(
        self,
        sender: AgentId,
        message: AgentMessage,
        recipients: list[AgentId],
    ) -> list[MessageResult]:
        """Send a message to several agents; what cannot be sent is told in its result."""
        plan = self._sending.broadcast(sender, message, recipients)
        return await self._run("broadcast", plan)

    # --- receiving ---

    async def receive(
        self,
        agent_id: AgentId,
        visibility_timeout: float = 5,
        *,
        timeout: float | None = None,
    ) -> ReceivedMessage | None:
        """Reserve the next message; wait up to `timeout` seconds for one."""
        found = await self.receive_batch(agent_id, 1, visibility_timeout, timeout=timeout)
        return found[0] if found else None

    async def receive_batch(
        self,
        agent_id: AgentId,
        max_messages: int,
        visibility_timeout: float = 5,
        *,
        timeout: float | None = None,
    ) -> list[ReceivedMessage]:
        """Reserve up to so many messages, 500 at most; wait up to `timeout` for the first."""
        plan = self._queueing.receive(agent_id, max_messages, visibility_timeout, timeout)
        return await self._run(f"receive for {agent_id}", plan)

    async def ack(self, agent_id: AgentId, token: str) -> bool:
        """Say that a message is dealt with; False, and no change, if its reservation is over."""
        (settled,) = await self.ack_batch(agent_id, [token])
        return settled

    async def ack_batch(self, agent_id: AgentId, tokens: Sequence[str]) -> list[bool]:
        """Acknowledge several; one answer for each, in their order."""
        return await self._run(f"acknowledge for {agent_id}", self._queueing.ack(agent_id, tokens))

    async def nack(
        self,
        agent_id: AgentId,
        token: str,
        failure: FailureType = FailureType.TRANSIENT,
        error: str | None = None,
    ) -> bool:
        """Have a message tried again later, or make it a dead letter; False as for `ack`."""
        plan = self._queueing.nack(agent_id, token, failure, error)
        return await self._run(f"refuse a message for {agent_id}", plan)

    async def extend(self, agent_id: AgentId, token: str, visibility_timeout: float) -> bool:
        """Keep a message for so many seconds from now; False if its reservation is over."""
        plan = self._queueing.extend(agent_id, token, visibility_timeout)
        return await self._run(f"extend a reservation for {agent_id}", plan)

    async def recover_pending(self, agent_id: AgentId | None = None) -> int:
        """Make expired reservations available at once; `receive` does so for its own agent."""
        return await self._run("recover reservations", self._queueing.recover(agent_id))

    # --- requests ---

    async def request(
        self, sender: AgentId, recipient: AgentId, message: AgentMessage, *, timeout: float
    ) -> AgentMessage:
        """Send a request and wait for its answer; `RequestTimeout` when none comes."""
        plan = self._requesting.request(sender, recipient, message, timeout)
        return await self._run(f"send a request to {recipient}", plan)

    async def respond(self, request: ReceivedMessage, payload: Mapping[str, Any]) -> bool:
        """Answer a request; False when nobody waits for it any more. It is still to be acked."""
        return await self._run("answer a request", self._requesting.respond(request, payload))

    # --- looking after it ---

    async def depths(self, agent_id: AgentId) -> QueueDepths:
        """How much waits for an agent, and for how long."""
        return await self._run(f"look at {agent_id}", self._queueing.depths(agent_id))

    async def dead_letters(
        self, agent_id: AgentId, *, first: int = 0, limit: int = 100
    ) -> list[DeadLetter]:
        """Dead letters, the oldest first."""
        plan = self._queueing.dead_letters(agent_id, first, limit)
        return await self._run(f"look at {agent_id}", plan)

    async def dead_letter(self, agent_id: AgentId, message_id: str) -> DeadLetter | None:
        """The dead letter of this id."""
        plan = self._queueing.dead_letter(agent_id, message_id)
        return await self._run(f"look at {agent_id}", plan)

    async def requeue_dead_letters(
        self,
        agent_id: AgentId,
        message_ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
    ) -> int:
        """Put these, or the oldest, back into the queue while there is room; how many."""
        plan = self._queueing.requeue(agent_id, message_ids, limit)
        return await self._run(f"requeue for {agent_id}", plan)

    async def purge_dead_letters(
        self,
        agent_id: AgentId,
        message_ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
    ) -> int:
        """Forget these, or the oldest; how many."""
        plan = self._queueing.purge(agent_id, message_ids, limit)
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
        """Change the configuration of all processes with this prefix; `CoordinatorConfig`."""
        changes = {name: value for name, value in locals().items() if name != "self"}
        await self._run("configure", self._queueing.configure(changes))

    async def configuration(self) -> CoordinatorConfig:
        """The configuration as it is now."""
        return await self._run("read the configuration", self._queueing.configure({}))

    # --- subscriptions ---

    def subscribe_to_messages(
        self, agent_id: AgentId, message_types: list[MessageType]
    ) -> MessageSubscription:
        """Let an agent have these types only, and those of its other subscriptions.

        It is written as soon as the loop comes to it, and before anything else that this
        coordinator does; `settle` waits for it.
        """
        subscription = subscription_for(agent_id, message_types)
        if message_types:
            self._unwritten.append(subscription)
            with suppress(RuntimeError):  # no loop runs: then the next operation writes it
                self._writing = asyncio.get_running_loop().create_task(self._write_in_time())
        return subscription

    async def unsubscribe(self, subscription: MessageSubscription) -> bool:
        """End a subscription; an agent without any takes all types."""
        plan = self._queueing.unsubscribe(subscription)
        return await self._run(f"unsubscribe {subscription.agent_id}", plan)

    async def settle(self) -> None:
        """Write the subscriptions that were made and are not written yet."""
        try:
            await self._write_subscriptions()
        except RedisTrouble as error:
            raise MessageCoordinatorError("write subscriptions", told(error)) from error

    async def _write_in_time(self) -> None:
        with suppress(*RedisTrouble):  # the next operation tells it
            await self._write_subscriptions()

    async def _write_subscriptions(self) -> None:
        while self._unwritten:
            subscription = self._unwritten[0]
            await self._writer.run(self._queueing.subscribe(subscription))
            with suppress(ValueError):  # somebody else wrote it too, which is the same
                self._unwritten.remove(subscription)

    async def _run(self, action: str, plan: Plan[T]) -> T:
        try:
            return await self._driver.run(plan)
        except RedisTrouble as error:
            raise MessageCoordinatorError(action, told(error)) from error
