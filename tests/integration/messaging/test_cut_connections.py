"""A connection that breaks inside an answer loses the answer, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from flowengine.messaging import (
    FailureType,
    MessageCoordinatorError,
    RedisMessageCoordinator,
    SyncMessageCoordinator,
)
from tests.integration.messaging.mail import ASKER, WORKER, mail, reserved
from tests.integration.messaging.proxy import Proxy
from tests.servers import RedisServer


@dataclass
class Line:
    """A coordinator whose connection can be cut, and one beside it that is whole."""

    proxy: Proxy
    fragile: SyncMessageCoordinator
    steady: SyncMessageCoordinator
    client: redis.Redis
    token: str = ""

    def prepare(self) -> None:
        """One message in hand, one that waits, one that is lost, one that is dead."""
        self.client.flushall()
        self.steady.configure(queue_size=5, retry_attempts=1, backoff_base=0)
        self.steady.nack(WORKER, self._handed("dead"), FailureType.PERMANENT)
        lost = self._handed("lost")
        self.token = self._handed("hand")
        self.steady.send_message(ASKER, WORKER, mail("waiting"))
        self.client.zadd("ao:reserved_deadlines:worker:1", {lost: 1})  # its time is over

    def _handed(self, name: str) -> str:
        self.steady.send_message(ASKER, WORKER, mail(name))
        received = self.steady.receive(WORKER, visibility_timeout=60)
        assert received is not None
        return received.token

    def accounted_for(self) -> set[str]:
        """Every message that is anywhere, after checking that it is in one place only."""
        client, stored = self.client, set(self.client.hkeys("ao:messages:worker:1"))
        queue = client.lrange("ao:queue:worker:1", 0, -1)
        scheduled = [
            name
            for level in (9, 5, 1)
            for name in client.zrange(f"ao:sched:worker:1:prio:{level}", 0, -1)
        ]
        tokens = client.hkeys("ao:reserved:worker:1")
        assert sorted(queue) == sorted(stored) == sorted(scheduled + reserved(client))
        assert set(client.zrange("ao:reserved_deadlines:worker:1", 0, -1)) == set(tokens)
        dead = client.lrange("ao:dlq:worker:1", 0, -1)
        assert sorted(dead) == sorted(client.hkeys("ao:dead:worker:1"))
        assert not stored & set(dead)
        return stored | set(dead)


@pytest.fixture
def line(redis_server: RedisServer) -> Iterator[Line]:
    port = int(redis_server.url.rpartition(":")[2].partition("/")[0])
    with (
        Proxy(port) as proxy,
        redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), 0)) as fragile,
        redis.Redis(port=port, decode_responses=True) as steady,
    ):
        yield Line(proxy, SyncMessageCoordinator(fragile), SyncMessageCoordinator(steady), steady)


Operation = Callable[[SyncMessageCoordinator, str], object]
ALL = {"message-dead", "message-lost", "message-hand", "message-waiting"}
OPERATIONS: dict[str, tuple[Operation, set[str]]] = {
    "send": (lambda box, _: box.send_message(ASKER, WORKER, mail("new")), ALL | {"message-new"}),
    "receive": (lambda box, _: box.receive(WORKER), ALL),
    "receive_batch": (lambda box, _: box.receive_batch(WORKER, 9), ALL),
    "ack": (lambda box, token: box.ack(WORKER, token), ALL - {"message-hand"}),
    "nack": (lambda box, token: box.nack(WORKER, token, error="no"), ALL),
    "bury": (lambda box, token: box.nack(WORKER, token, FailureType.PERMANENT), ALL),
    "extend": (lambda box, token: box.extend(WORKER, token, 60), ALL),
    "recover": (lambda box, _: box.recover_pending(), ALL),
    "requeue": (lambda box, _: box.requeue_dead_letters(WORKER), ALL),
    "purge": (lambda box, _: box.purge_dead_letters(WORKER), ALL - {"message-dead"}),
    "configure": (lambda box, _: box.configure(queue_size=7), ALL),
    "depths": (lambda box, _: box.depths(WORKER), ALL),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_cut_at_any_byte_of_its_answer_loses_nothing(line: Line, name: str) -> None:
    operation, expected = OPERATIONS[name]
    line.prepare()
    operation(line.steady, line.token)  # the script is known from now on
    position, cuts = 0, 0
    stride = (
        7 if name == "receive_batch" else 1
    )  # its answer is long, and made as that of `receive`
    while True:
        line.prepare()
        line.fragile.configuration()  # connected before the cut
        line.proxy.cut_after(position)
        try:
            operation(line.fragile, line.token)
        except MessageCoordinatorError:
            assert line.proxy.has_cut
            cuts += 1
        line.proxy.left = None
        assert line.accounted_for() == expected
        # Whoever repeats it does no harm either.
        operation(line.steady, line.token)
        assert line.accounted_for() == expected
        if not line.proxy.has_cut:
            break
        position += stride
    assert cuts == position // stride > 0


def test_what_a_lost_answer_handed_out_is_handed_out_again_when_the_client_repeats(
    line: Line,
) -> None:
    line.prepare()
    line.steady.recover_pending(WORKER)  # so that the first answer is the one with the messages
    with redis.Redis(
        port=line.proxy.port,
        retry=Retry(NoBackoff(), 2),
        retry_on_error=[redis.ConnectionError],  # redis-py 5 repeats nothing without being told
    ) as stubborn:
        box = SyncMessageCoordinator(stubborn)
        box.receive(ASKER)  # the script is known
        line.proxy.cut_after(3)
        received = box.receive_batch(WORKER, 9)
        assert line.proxy.has_cut
    names = {one.message.payload["name"]: one for one in received}
    assert set(names) == {"lost", "waiting"}
    assert names["waiting"].queue_message.delivery_attempts == 0
    assert line.steady.ack_batch(WORKER, [one.token for one in received]) == [True, True]


def test_a_coroutine_whose_connection_is_cut_is_told_and_may_go_on(line: Line) -> None:
    async def cut() -> None:
        client = redis.asyncio.Redis(
            port=line.proxy.port, retry=redis.asyncio.retry.Retry(NoBackoff(), 0)
        )
        async with client:
            box = RedisMessageCoordinator(client)
            await box.configuration()
            line.proxy.cut_after(2)
            with pytest.raises(MessageCoordinatorError, match="cannot send to worker/1"):
                await box.send_message(ASKER, WORKER, mail("new"))
            again = await box.send_message(ASKER, WORKER, mail("new"))
            assert (again.delivered, again.duplicate) == (True, True)

    line.prepare()
    asyncio.run(cut())
    assert line.accounted_for() == ALL | {"message-new"}
