"""The message coordinators: for coroutines, and for Celery tasks, threads and scripts."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from flowengine.errors import MessageCoordinatorError
from flowengine.messaging.drivers import (
    AsyncClient,
    AsyncDriver,
    RedisErrors,
    SyncClient,
    SyncDriver,
    asynchronous,
    describe,
    synchronous,
)
from flowengine.messaging.interfaces import MessageCoordinator, MessageMetrics
from flowengine.messaging.message_plans import MessagePlans, subscription_for
from flowengine.messaging.models import AgentId, MessageSubscription, MessageType


class RedisMessageCoordinator(MessageCoordinator):
    """Sends and receives messages over `redis.asyncio`; the tasks of one loop may share it.

    Every operation is atomic. An operation that raises `MessageCoordinatorError` took effect
    completely or not at all, and may be repeated: a message with the same id is not enqueued twice.
    A cancelled `receive` returns its messages to the queue.
    """

    def __init__(
        self,
        redis: AsyncClient,
        key_prefix: str = "ao",
        metrics: MessageMetrics | None = None,
        *,
        max_message_bytes: int | None = None,
    ) -> None:
        self._driver = AsyncDriver(redis, before=self._write_subscriptions)
        self._writer = AsyncDriver(redis)
        self._plans = MessagePlans(key_prefix, metrics, max_message_bytes)
        self._unwritten: list[MessageSubscription] = []
        self._writing: asyncio.Task[None] | None = None

    send_message = asynchronous(MessagePlans.send_message, "send to {recipient}")
    send_batch = asynchronous(MessagePlans.send_batch, "send to {recipient}")
    broadcast_message = asynchronous(MessagePlans.broadcast_message, "broadcast")
    receive = asynchronous(MessagePlans.receive, "receive for {agent_id}")
    receive_batch = asynchronous(MessagePlans.receive_batch, "receive for {agent_id}")
    ack = asynchronous(MessagePlans.ack, "acknowledge for {agent_id}")
    ack_batch = asynchronous(MessagePlans.ack_batch, "acknowledge for {agent_id}")
    nack = asynchronous(MessagePlans.nack, "reject a message for {agent_id}")
    extend = asynchronous(MessagePlans.extend, "extend a reservation for {agent_id}")
    recover_pending = asynchronous(MessagePlans.recover_pending, "recover reservations")
    request = asynchronous(MessagePlans.request, "send a request to {recipient}")
    respond = asynchronous(MessagePlans.respond, "respond to a request")
    depths = asynchronous(MessagePlans.depths, "inspect {agent_id}")
    dead_letters = asynchronous(MessagePlans.dead_letters, "inspect {agent_id}")
    dead_letter = asynchronous(MessagePlans.dead_letter, "inspect {agent_id}")
    requeue_dead_letters = asynchronous(MessagePlans.requeue_dead_letters, "requeue for {agent_id}")
    purge_dead_letters = asynchronous(MessagePlans.purge_dead_letters, "purge for {agent_id}")
    configure = asynchronous(MessagePlans.configure, "configure")
    configuration = asynchronous(MessagePlans.configuration, "read the configuration")
    unsubscribe = asynchronous(MessagePlans.unsubscribe, "unsubscribe {subscription.agent_id}")

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
            await self._writer.run(self._plans.subscribe(subscription))
            with suppress(ValueError):  # a concurrent operation wrote it: idempotent
                self._unwritten.remove(subscription)


class SyncMessageCoordinator:
    """`RedisMessageCoordinator` without coroutines, over `redis.Redis`.

    Threads may share it. A forked process needs its own `redis.Redis`.
    """

    def __init__(
        self,
        redis: SyncClient,
        key_prefix: str = "ao",
        metrics: MessageMetrics | None = None,
        *,
        max_message_bytes: int | None = None,
    ) -> None:
        self._driver = SyncDriver(redis)
        self._plans = MessagePlans(key_prefix, metrics, max_message_bytes)

    send_message = synchronous(MessagePlans.send_message, "send to {recipient}")
    send_batch = synchronous(MessagePlans.send_batch, "send to {recipient}")
    broadcast_message = synchronous(MessagePlans.broadcast_message, "broadcast")
    receive = synchronous(MessagePlans.receive, "receive for {agent_id}")
    receive_batch = synchronous(MessagePlans.receive_batch, "receive for {agent_id}")
    ack = synchronous(MessagePlans.ack, "acknowledge for {agent_id}")
    ack_batch = synchronous(MessagePlans.ack_batch, "acknowledge for {agent_id}")
    nack = synchronous(MessagePlans.nack, "reject a message for {agent_id}")
    extend = synchronous(MessagePlans.extend, "extend a reservation for {agent_id}")
    recover_pending = synchronous(MessagePlans.recover_pending, "recover reservations")
    request = synchronous(MessagePlans.request, "send a request to {recipient}")
    respond = synchronous(MessagePlans.respond, "respond to a request")
    depths = synchronous(MessagePlans.depths, "inspect {agent_id}")
    dead_letters = synchronous(MessagePlans.dead_letters, "inspect {agent_id}")
    dead_letter = synchronous(MessagePlans.dead_letter, "inspect {agent_id}")
    requeue_dead_letters = synchronous(MessagePlans.requeue_dead_letters, "requeue for {agent_id}")
    purge_dead_letters = synchronous(MessagePlans.purge_dead_letters, "purge for {agent_id}")
    configure = synchronous(MessagePlans.configure, "configure")
    configuration = synchronous(MessagePlans.configuration, "read the configuration")
    unsubscribe = synchronous(MessagePlans.unsubscribe, "unsubscribe {subscription.agent_id}")
    _subscribe = synchronous(MessagePlans.subscribe, "subscribe {subscription.agent_id}")

    def subscribe_to_messages(
        self, agent_id: AgentId, message_types: list[MessageType]
    ) -> MessageSubscription:
        """Limit an agent to these types and those of its other subscriptions."""
        subscription = subscription_for(agent_id, message_types)
        if message_types:
            self._subscribe(subscription)
        return subscription
