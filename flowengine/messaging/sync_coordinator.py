"""The message coordinator for synchronous code: Celery tasks, threads, scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from flowengine.errors import MessageCoordinatorError
from flowengine.messaging.drivers import Plan, RedisErrors, SyncClient, SyncDriver, describe
from flowengine.messaging.interfaces import MessageMetrics
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


class SyncMessageCoordinator:
    """`RedisMessageCoordinator` without coroutines, over `redis.Redis`.

    Threads may share it. A forked process needs its own `redis.Redis`.
    """

    def __init__(
        self, redis: SyncClient, key_prefix: str = "ao", metrics: MessageMetrics | None = None
    ) -> None:
        self._driver = SyncDriver(redis)
        calls, recorder = ScriptCalls(Keys(key_prefix)), MetricsRecorder(metrics)
        self._sends = SendPlans(calls, recorder)
        self._queue = QueuePlans(calls, recorder)
        self._requests = RequestPlans(calls.keys, self._sends)

    # --- sending ---

    def send_message(
        self,
        sender: AgentId,
        recipient: AgentId,
        message: AgentMessage,
        *,
        delay: float = 0.0,
        expires_in: float | None = None,
    ) -> MessageResult:
        """Send a message; it is available after `delay` seconds and expires after `expires_in`."""
        (result,) = self.send_batch(
            sender, recipient, [message], delay=delay, expires_in=expires_in
        )
        return result

    def send_batch(
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
        return self._run(f"send to {recipient}", plan)

    def broadcast_message(
        self, sender: AgentId, message: AgentMessage, recipients: list[AgentId]
    ) -> list[MessageResult]:
        """Send a message to several agents; a result reports a failed send."""
        plan = self._sends.broadcast(sender, message, recipients)
        return self._run("broadcast", plan)

    # --- receiving ---

    def receive(
        self, agent_id: AgentId, visibility_timeout: float = 5, *, timeout: float | None = None
    ) -> ReceivedMessage | None:
        """Reserve the next message; wait up to `timeout` seconds for one."""
        received = self.receive_batch(agent_id, 1, visibility_timeout, timeout=timeout)
        return received[0] if received else None

    def receive_batch(
        self,
        agent_id: AgentId,
        max_messages: int,
        visibility_timeout: float = 5,
        *,
        timeout: float | None = None,
    ) -> list[ReceivedMessage]:
        """Reserve up to `max_messages` (500 at most); wait up to `timeout` for the first."""
        plan = self._queue.receive(agent_id, max_messages, visibility_timeout, timeout)
        return self._run(f"receive for {agent_id}", plan)

    def ack(self, agent_id: AgentId, token: str) -> bool:
        """Acknowledge a processed message; False, without effect, if its reservation ended."""
        (settled,) = self.ack_batch(agent_id, [token])
        return settled

    def ack_batch(self, agent_id: AgentId, tokens: Sequence[str]) -> list[bool]:
        """Acknowledge several messages; the results are in the same order."""
        return self._run(f"acknowledge for {agent_id}", self._queue.ack(agent_id, tokens))

    def nack(
        self,
        agent_id: AgentId,
        token: str,
        failure: FailureType = FailureType.TRANSIENT,
        error: str | None = None,
    ) -> bool:
        """Schedule a retry of a message, or make it a dead letter; False as for `ack`."""
        plan = self._queue.nack(agent_id, token, failure, error)
        return self._run(f"reject a message for {agent_id}", plan)

    def extend(self, agent_id: AgentId, token: str, visibility_timeout: float) -> bool:
        """Set the deadline to `visibility_timeout` seconds from now; False as for `ack`."""
        plan = self._queue.extend(agent_id, token, visibility_timeout)
        return self._run(f"extend a reservation for {agent_id}", plan)

    def recover_pending(self, agent_id: AgentId | None = None) -> int:
        """Return messages with an expired reservation to the queue.

        `receive` does this for its own agent.
        """
        return self._run("recover reservations", self._queue.recover(agent_id))

    # --- requests ---

    def request(
        self, sender: AgentId, recipient: AgentId, message: AgentMessage, *, timeout: float
    ) -> AgentMessage:
        """Send a request and wait for the response; raise `RequestTimeout` without one."""
        plan = self._requests.request(sender, recipient, message, timeout)
        return self._run(f"send a request to {recipient}", plan)

    def respond(self, request: ReceivedMessage, payload: Mapping[str, Any]) -> bool:
        """Respond to a request; False if the requester no longer waits.

        The request must still be acknowledged.
        """
        return self._run("respond to a request", self._requests.respond(request, payload))

    # --- inspection and dead letters ---

    def depths(self, agent_id: AgentId) -> QueueDepths:
        """The number of messages of an agent by state, and the age of the oldest."""
        return self._run(f"inspect {agent_id}", self._queue.depths(agent_id))

    def dead_letters(
        self, agent_id: AgentId, *, first: int = 0, limit: int = 100
    ) -> list[DeadLetter]:
        """Dead letters, the oldest first."""
        plan = self._queue.dead_letters(agent_id, first, limit)
        return self._run(f"inspect {agent_id}", plan)

    def dead_letter(self, agent_id: AgentId, message_id: str) -> DeadLetter | None:
        """The dead letter with this id."""
        plan = self._queue.dead_letter(agent_id, message_id)
        return self._run(f"inspect {agent_id}", plan)

    def requeue_dead_letters(
        self, agent_id: AgentId, message_ids: Sequence[str] | None = None, *, limit: int = 1000
    ) -> int:
        """Requeue these dead letters, or the oldest, while there is room; their number."""
        plan = self._queue.requeue(agent_id, message_ids, limit)
        return self._run(f"requeue for {agent_id}", plan)

    def purge_dead_letters(
        self, agent_id: AgentId, message_ids: Sequence[str] | None = None, *, limit: int = 1000
    ) -> int:
        """Delete these dead letters, or the oldest; their number."""
        plan = self._queue.purge(agent_id, message_ids, limit)
        return self._run(f"purge for {agent_id}", plan)

    def configure(
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
        self._run("configure", self._queue.configure(changes))

    def configuration(self) -> CoordinatorConfig:
        """The current configuration."""
        return self._run("read the configuration", self._queue.configure({}))

    # --- subscriptions ---

    def subscribe_to_messages(
        self, agent_id: AgentId, message_types: list[MessageType]
    ) -> MessageSubscription:
        """Limit an agent to these types and those of its other subscriptions."""
        subscription = subscription_for(agent_id, message_types)
        if message_types:
            self._run(f"subscribe {agent_id}", self._queue.subscribe(subscription))
        return subscription

    def unsubscribe(self, subscription: MessageSubscription) -> bool:
        """End a subscription; an agent without subscriptions takes all types."""
        plan = self._queue.unsubscribe(subscription)
        return self._run(f"unsubscribe {subscription.agent_id}", plan)

    def _run(self, action: str, plan: Plan[T]) -> T:
        try:
            return self._driver.run(plan)
        except RedisErrors as error:
            raise MessageCoordinatorError(action, describe(error)) from error
