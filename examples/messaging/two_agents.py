"""Two agents: one sends requests, the other responds.

    FLOWENGINE_EXAMPLE_REDIS=redis://localhost python examples/messaging/two_agents.py

The asker sends a request and waits for the response. The librarian receives messages and
acknowledges each after it has responded. It rejects a request that it can never process, which
becomes a dead letter.
"""

import asyncio
import os
import uuid

from redis.asyncio import Redis

from flowengine.messaging import (
    AgentId,
    AgentMessage,
    FailureType,
    MessageType,
    RedisMessageCoordinator,
)

ASKER = AgentId(type="asker")
LIBRARIAN = AgentId(type="librarian", instance="reading-room")
SHELVES = {"Middlemarch": "E, 3rd shelf", "Emma": "A, 1st shelf"}


def question(**payload: str) -> AgentMessage:
    return AgentMessage(
        # A new id each time: a message whose id was acknowledged a moment ago is a duplicate.
        message_id=f"question-{uuid.uuid4().hex}",
        sender=ASKER,
        recipient=LIBRARIAN,
        message_type=MessageType.REQUEST,
        payload=payload,
    )


async def librarian(coordinator: RedisMessageCoordinator) -> None:
    while True:
        received = await coordinator.receive(LIBRARIAN, visibility_timeout=10, timeout=60)
        if received is None:
            continue
        title = received.message.payload.get("title")
        if title is None:
            error = "a question without a title"
            await coordinator.nack(LIBRARIAN, received.token, FailureType.PERMANENT, error)
            continue
        await coordinator.respond(received, {"place": SHELVES.get(title, "not here")})
        await coordinator.ack(LIBRARIAN, received.token)


async def main() -> None:
    url = os.environ.get("FLOWENGINE_EXAMPLE_REDIS", "redis://localhost:6379/0")
    async with Redis.from_url(url) as redis:
        coordinator = RedisMessageCoordinator(redis, key_prefix="library")
        consumer = asyncio.create_task(librarian(coordinator))

        for title in ["Emma", "Ulysses"]:
            request = question(title=title)
            response = await coordinator.request(ASKER, LIBRARIAN, request, timeout=10)
            print(f"{title}: {response.payload['place']}")

        await coordinator.send_message(ASKER, LIBRARIAN, question())
        while not (letters := await coordinator.dead_letters(LIBRARIAN)):
            await asyncio.sleep(0.01)
        print(f"dead letter: {letters[0].error}")
        await coordinator.purge_dead_letters(LIBRARIAN)

        consumer.cancel()
        await asyncio.gather(consumer, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
