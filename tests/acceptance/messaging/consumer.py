"""A process that receives and acknowledges until `test:stop` exists, or until it is killed.

It records each delivery before the acknowledgement, and the result of the acknowledgement.
"""

from __future__ import annotations

import os

import redis

from flowengine.messaging import AgentId, SyncMessageCoordinator

WORKER = AgentId(type="worker")
VISIBILITY = 1.0


def main(url: str) -> None:
    client = redis.Redis.from_url(url)
    box = SyncMessageCoordinator(client)
    process = os.getpid()
    while not client.exists("test:stop"):
        received = box.receive(WORKER, VISIBILITY, timeout=0.5)
        if received is None:
            continue
        name, tries = received.message.message_id, received.queue_message.delivery_attempts
        client.rpush("test:delivered", f"{name} {tries} {process}")
        if received.message.payload["fatal"]:
            os._exit(1)
        outcome = "acked" if box.ack(WORKER, received.token) else "late"
        client.rpush(f"test:{outcome}", f"{name} {tries} {process}")
