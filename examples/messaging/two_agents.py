"""Two agents that talk: one asks, the other answers.

    FLOWENGINE_EXAMPLE_REDIS=redis://localhost python examples/messaging/two_agents.py

The asker sends a request and waits for the answer to it. The librarian waits for messages, and
acknowledges each when it is dealt with; what it cannot deal with is tried again, and then kept
as a dead letter.
"""

import asyncio
import os

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


def question(number: int, **payload: str) -> AgentMessage:
    return AgentMessage(
        message_id=f"question-{number}",
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
        at_work = asyncio.create_task(librarian(coordinator))

        for number, title in enumerate(["Emma", "Ulysses"]):
            asked = question(number, title=title)
            answer = await coordinator.request(ASKER, LIBRARIAN, asked, timeout=10)
            print(f"{title}: {answer.payload['place']}")

        await coordinator.send_message(ASKER, LIBRARIAN, question(9))
        while not (letters := await coordinator.dead_letters(LIBRARIAN)):
            await asyncio.sleep(0.01)
        print(f"{letters[0].message_id} is dead: {letters[0].error}")
        await coordinator.purge_dead_letters(LIBRARIAN)

        at_work.cancel()
        await asyncio.gather(at_work, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
