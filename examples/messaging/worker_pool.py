"""A pool of workers with priorities, and a registry of living workers.

    FLOWENGINE_EXAMPLE_REDIS=redis://localhost python examples/messaging/worker_pool.py

Three threads share one queue. Urgent orders come first, but every fifth delivery is the oldest
order, so that the others do not starve. One worker dies while it holds an order; another one packs
it when the reservation has expired.
"""

import os
import threading
import uuid
from collections import Counter

from redis import Redis

from flowengine.messaging import (
    Agent,
    AgentId,
    AgentMessage,
    MessagePriority,
    MessageType,
    RedisAgentRegistry,
    SyncMessageCoordinator,
)

POOL = AgentId(type="packer")
SHOP = AgentId(type="shop")
URL = os.environ.get("FLOWENGINE_EXAMPLE_REDIS", "redis://localhost:6379/0")

done: Counter[str] = Counter()
order_of_work: list[MessagePriority] = []


def order(number: int, priority: MessagePriority) -> AgentMessage:
    return AgentMessage(
        message_id=f"order-{number}-{uuid.uuid4().hex[:8]}",
        sender=SHOP,
        recipient=POOL,
        message_type=MessageType.EVENT,
        payload={"number": number},
        priority=priority,
    )


def worker(name: str, dies: bool = False) -> None:
    with Redis.from_url(URL) as redis, RedisAgentRegistry(redis, "pool") as registry:
        coordinator = SyncMessageCoordinator(redis, "pool")
        me = AgentId(type="packer", instance=name)
        registry.register(Agent(agent_id=me, name=name, capabilities={"pack"}))
        registry.start_heartbeats()
        while received := coordinator.receive(POOL, visibility_timeout=0.5, timeout=1):
            if dies:
                return  # dies without an acknowledgement
            order_of_work.append(received.queue_message.priority)
            if coordinator.ack(POOL, received.token):
                done[name] += 1
        registry.deregister(me)


def main() -> None:
    with Redis.from_url(URL) as redis:
        coordinator = SyncMessageCoordinator(redis, "pool")
        coordinator.configure(fairness=5)
        low = [order(number, MessagePriority.LOW) for number in range(20)]
        high = [order(number, MessagePriority.HIGH) for number in range(20, 60)]
        coordinator.send_batch(SHOP, POOL, low)
        coordinator.send_batch(SHOP, POOL, high)
        print(f"{coordinator.depths(POOL).total} orders wait")

        workers = [threading.Thread(target=worker, args=(name,)) for name in ("Ada", "Bob")]
        workers.append(threading.Thread(target=worker, args=("Cid", True)))
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()

        first = order_of_work[:10]
        print(f"{sum(done.values())} orders packed, {done['Cid']} of them by Cid")
        print(f"of the first ten {first.count(MessagePriority.HIGH)} were urgent")
        registry = RedisAgentRegistry(redis, "pool")
        print(f"still registered: {', '.join(agent['name'] for agent in registry.list_agents())}")
        registry.deregister(AgentId(type="packer", instance="Cid"))


if __name__ == "__main__":
    main()
