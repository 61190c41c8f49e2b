"""The messages of a batch can be settled one by one, all together, or in parts."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from flowengine.messaging import FailureType, SyncMessageCoordinator, message_plans
from tests.integration.messaging.samples import ASKER, HIGH, LOW, WORKER, reserved, sample


def send(coordinator: Any, count: int, first: int = 0) -> None:
    coordinator.send_batch(
        ASKER, WORKER, [sample(number) for number in range(first, first + count)]
    )


def names(received: list[Any]) -> list[Any]:
    return [one.message.payload["name"] for one in received]


def attempts(received: list[Any]) -> dict[Any, int]:
    return {one.message.payload["name"]: one.queue_message.delivery_attempts for one in received}


def let_expire(client: redis.Redis, within: float = 100) -> None:
    """Make all reservations expire that would do so within `within` seconds."""
    until = (client.time()[0] + within) * 1_000_000
    for name in client.zrangebyscore("ao:reserved_deadlines:worker:1", 0, until):
        client.zadd("ao:reserved_deadlines:worker:1", {name: 1})


# --- acknowledging ---


def test_a_batch_is_one_entry_which_is_deleted_when_all_is_acknowledged(
    coordinator: Any, client: redis.Redis
) -> None:
    send(coordinator, 50)
    tokens = [one.token for one in coordinator.receive_batch(WORKER, 50)]
    assert (
        client.hlen("ao:reserved:worker:1") == client.zcard("ao:reserved_deadlines:worker:1") == 1
    )
    assert coordinator.ack_batch(WORKER, tokens) == [True] * 50
    assert client.exists("ao:reserved:worker:1", "ao:reserved_deadlines:worker:1") == 0
    assert client.exists("ao:messages:worker:1", "ao:queue:worker:1") == 0


def test_parts_of_a_batch_are_acknowledged_once(coordinator: Any, client: redis.Redis) -> None:
    send(coordinator, 6)
    tokens = [one.token for one in coordinator.receive_batch(WORKER, 6)]
    assert coordinator.ack_batch(WORKER, tokens[1:3]) == [True, True]
    assert coordinator.depths(WORKER).reserved == 4
    assert coordinator.ack(WORKER, tokens[5]) is True
    assert sorted(reserved(client)) == ["message-0", "message-3", "message-4"]
    assert coordinator.ack_batch(WORKER, tokens) == [True, False, False, True, True, False]
    assert coordinator.ack_batch(WORKER, tokens) == [False] * 6
    assert coordinator.depths(WORKER).total == 0


def test_a_repeated_token_in_one_call_is_acknowledged_once(coordinator: Any) -> None:
    send(coordinator, 3)
    one, *two = (received.token for received in coordinator.receive_batch(WORKER, 3))
    assert coordinator.ack_batch(WORKER, [one, one]) == [True, False]
    assert coordinator.ack_batch(WORKER, [*two, *two]) == [True, True, False, False]
    send(coordinator, 1, first=9)
    single = coordinator.receive(WORKER).token
    assert coordinator.ack_batch(WORKER, [single, single]) == [True, False]


def test_tokens_of_several_batches_are_acknowledged_in_any_order(coordinator: Any) -> None:
    send(coordinator, 7)
    first = [one.token for one in coordinator.receive_batch(WORKER, 3)]
    second = [one.token for one in coordinator.receive_batch(WORKER, 3)]
    single = coordinator.receive(WORKER).token
    mixed = [second[2], first[0], "res_0123456789abcdef-2", single, second[0], first[1], "a b"]
    assert coordinator.ack_batch(WORKER, mixed) == [True, True, False, True, True, True, False]
    assert coordinator.ack_batch(WORKER, [first[2], second[1]]) == [True, True]
    assert coordinator.depths(WORKER).total == 0


@pytest.mark.parametrize("ending", ["-0", "-1", "-02", "-5", "+", "-2-2", "- 2"])
def test_an_unissued_token_settles_nothing(coordinator: Any, ending: str) -> None:
    send(coordinator, 4)
    token = coordinator.receive_batch(WORKER, 4)[0].token + ending
    assert coordinator.ack(WORKER, token) is False
    assert coordinator.ack_batch(WORKER, [token, token]) == [False, False]
    assert coordinator.nack(WORKER, token) is False
    assert coordinator.extend(WORKER, token, 60) is False
    assert coordinator.depths(WORKER).reserved == 4


@pytest.mark.parametrize("held", [0, 30, 1100], ids=["at the head", "behind others", "far behind"])
def test_the_queue_keeps_its_order_when_a_section_is_acknowledged(
    coordinator: Any, client: redis.Redis, held: int
) -> None:
    send(coordinator, held + 20)
    for _ in range(0, held, 50):
        coordinator.receive_batch(WORKER, min(held, 50))
    tokens = [one.token for one in coordinator.receive_batch(WORKER, 20)]
    assert all(coordinator.ack_batch(WORKER, [*tokens[:8], *tokens[10:]]))
    left = [*range(held), held + 8, held + 9]
    assert client.lrange("ao:queue:worker:1", 0, -1) == [f"message-{name}" for name in left]


def test_message_ids_may_contain_any_characters(coordinator: Any, client: redis.Redis) -> None:
    ids = [
        'say "no"\\',
        "two\nlines here",
        "größer/%s + -2",
        "123456",
        "nul\0 del\x7f",
        "[[false]]",
    ]
    coordinator.send_batch(ASKER, WORKER, [sample(1, message_id=name) for name in ids])
    received = coordinator.receive_batch(WORKER, 9)
    assert [one.message.message_id for one in received] == ids
    assert coordinator.extend(WORKER, received[1].token, 60) is True
    assert coordinator.nack(WORKER, received[0].token, FailureType.PERMANENT) is True
    assert coordinator.ack_batch(WORKER, [one.token for one in received]) == [False] + [True] * 5
    assert client.exists("ao:messages:worker:1", "ao:queue:worker:1", "ao:reserved:worker:1") == 0
    assert [one.message_id for one in coordinator.dead_letters(WORKER)] == [ids[0]]


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_below_one_receives_nothing(coordinator: Any, limit: int) -> None:
    send(coordinator, 2)
    assert coordinator.receive_batch(WORKER, limit) == []
    assert coordinator.depths(WORKER).reserved == 0


# --- single messages of a batch ---


def test_extending_one_message_does_not_extend_the_others(
    coordinator: Any, client: redis.Redis
) -> None:
    send(coordinator, 3)
    tokens = [one.token for one in coordinator.receive_batch(WORKER, 3, visibility_timeout=60)]
    assert coordinator.extend(WORKER, tokens[0], 3600) is True
    let_expire(client)
    again = coordinator.receive_batch(WORKER, 9)
    assert attempts(again) == {1: 1, 2: 1}
    assert coordinator.ack_batch(WORKER, tokens) == [True, False, False]
    assert coordinator.ack_batch(WORKER, [one.token for one in again]) == [True, True]


def test_extending_by_zero_returns_one_message_only(coordinator: Any) -> None:
    send(coordinator, 3)
    tokens = [one.token for one in coordinator.receive_batch(WORKER, 3)]
    assert coordinator.extend(WORKER, tokens[1], 0) is True
    assert attempts(coordinator.receive_batch(WORKER, 9)) == {1: 1}
    assert coordinator.ack_batch(WORKER, tokens) == [True, False, True]


def test_an_extended_message_can_be_extended_again_and_settled(coordinator: Any) -> None:
    send(coordinator, 3)
    tokens = [one.token for one in coordinator.receive_batch(WORKER, 3)]
    for _ in range(2):
        assert [coordinator.extend(WORKER, token, 60) for token in tokens] == [True] * 3
    assert coordinator.nack(WORKER, tokens[2], FailureType.PERMANENT, "no") is True
    assert coordinator.ack_batch(WORKER, tokens) == [True, True, False]
    assert coordinator.depths(WORKER).dead == 1


def test_rejecting_one_message_does_not_reject_the_others(coordinator: Any) -> None:
    coordinator.configure(backoff_base=0)
    send(coordinator, 4)
    tokens = [one.token for one in coordinator.receive_batch(WORKER, 4)]
    assert coordinator.nack(WORKER, tokens[1], error="no paper") is True
    assert coordinator.nack(WORKER, tokens[1]) is False
    assert coordinator.nack(WORKER, tokens[2], FailureType.PERMANENT, "no") is True
    (again,) = coordinator.receive_batch(WORKER, 9)
    assert (again.queue_message.delivery_attempts, again.queue_message.last_error) == (
        1,
        "no paper",
    )
    assert coordinator.dead_letter(WORKER, "message-2").attempts == 1
    assert coordinator.ack_batch(WORKER, tokens) == [True, False, False, True]


# --- expiry ---


def test_a_late_settlement_of_a_batch_changes_nothing(coordinator: Any) -> None:
    send(coordinator, 3)
    tokens = [one.token for one in coordinator.receive_batch(WORKER, 3, visibility_timeout=0)]
    assert coordinator.ack_batch(WORKER, tokens) == [False] * 3
    assert coordinator.ack(WORKER, tokens[1]) is False
    assert coordinator.nack(WORKER, tokens[1], FailureType.PERMANENT) is False
    assert coordinator.extend(WORKER, tokens[1], 60) is False
    assert coordinator.depths(WORKER).reserved == 3
    assert attempts(coordinator.receive_batch(WORKER, 9)) == {0: 1, 1: 1, 2: 1}


def test_a_receiver_waits_for_a_batch_that_expires(coordinator: Any) -> None:
    send(coordinator, 2)
    coordinator.receive_batch(WORKER, 2, visibility_timeout=0.1)
    assert attempts(coordinator.receive_batch(WORKER, 2, timeout=20)) == {0: 1, 1: 1}


def test_only_the_unsettled_messages_of_a_batch_expire(
    coordinator: Any, client: redis.Redis
) -> None:
    send(coordinator, 4)
    tokens = [one.token for one in coordinator.receive_batch(WORKER, 4, visibility_timeout=60)]
    assert coordinator.ack_batch(WORKER, [tokens[0], tokens[2]]) == [True, True]
    let_expire(client)
    again = coordinator.receive_batch(WORKER, 9, visibility_timeout=60)
    assert attempts(again) == {1: 1, 3: 1}
    assert coordinator.ack_batch(WORKER, tokens) == [False] * 4
    assert coordinator.nack(WORKER, tokens[1]) is False
    assert coordinator.extend(WORKER, tokens[1], 60) is False
    assert coordinator.depths(WORKER).reserved == 2


def test_every_message_of_a_batch_is_recovered_and_counted(
    coordinator: Any, client: redis.Redis
) -> None:
    send(coordinator, 1200)
    first, *_ = (coordinator.receive_batch(WORKER, 400, visibility_timeout=60) for _ in range(3))
    coordinator.ack_batch(WORKER, [one.token for one in first[:200]])
    let_expire(client)
    assert coordinator.recover_pending(WORKER) == 1000
    assert coordinator.depths(WORKER).reserved == 0
    left = [one for _ in range(2) for one in coordinator.receive_batch(WORKER, 500)]
    assert sorted(names(left)) == list(range(200, 1200))


def test_deliveries_are_counted_for_each_message_of_a_batch(coordinator: Any) -> None:
    coordinator.configure(retry_attempts=2, backoff_base=0)
    send(coordinator, 1)
    coordinator.nack(WORKER, coordinator.receive(WORKER).token, error="first")
    send(coordinator, 2, first=1)
    first = coordinator.receive_batch(WORKER, 9, visibility_timeout=0)
    assert attempts(first) == {0: 1, 1: 0, 2: 0}
    assert [one.queue_message.last_error for one in first] == ["first", None, None]
    second = coordinator.receive_batch(WORKER, 9, visibility_timeout=0)
    assert attempts(second) == {0: 2, 1: 1, 2: 1}
    assert attempts(coordinator.receive_batch(WORKER, 9, visibility_timeout=0)) == {1: 2, 2: 2}
    assert coordinator.receive_batch(WORKER, 9) == []
    letters = coordinator.dead_letters(WORKER)
    assert [(one.message_id, one.attempts) for one in letters] == [
        ("message-0", 3),
        ("message-1", 3),
        ("message-2", 3),
    ]


def test_a_batch_of_several_priorities_keeps_their_order_when_it_expires(coordinator: Any) -> None:
    for number, priority in enumerate((LOW, HIGH, LOW, HIGH)):
        coordinator.send_message(ASKER, WORKER, sample(number, priority=priority))
    assert names(coordinator.receive_batch(WORKER, 9, visibility_timeout=0)) == [1, 3, 0, 2]
    assert names(coordinator.receive_batch(WORKER, 9)) == [1, 3, 0, 2]


# --- repeated commands ---


def test_a_repeated_receive_returns_the_unsettled_messages_of_its_token(
    coordinator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_plans, "new_token", lambda: "res_0123456789abcdef")
    coordinator.configure(backoff_base=0)
    send(coordinator, 1)
    coordinator.nack(WORKER, coordinator.receive(WORKER).token, error="first")
    send(coordinator, 3, first=1)
    first = coordinator.receive_batch(WORKER, 4)
    send(coordinator, 2, first=4)
    assert coordinator.receive_batch(WORKER, 4) == first
    tokens = [one.token for one in first]
    assert coordinator.ack_batch(WORKER, tokens[1:3]) == [True, True]
    assert coordinator.receive_batch(WORKER, 4) == [first[0], first[3]]
    assert coordinator.ack_batch(WORKER, [tokens[0], tokens[3]]) == [True, True]
    assert names(coordinator.receive_batch(WORKER, 4)) == [4, 5]


def test_a_repeated_receive_of_one_message_returns_it_again(
    coordinator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_plans, "new_token", lambda: "res_0123456789abcdef")
    send(coordinator, 2)
    first = coordinator.receive(WORKER)
    assert coordinator.receive(WORKER) == first
    assert coordinator.ack(WORKER, first.token) is True
    assert names([coordinator.receive(WORKER)]) == [1]


# --- storage ---


def test_a_message_with_line_breaks_is_received_with_the_others(
    coordinator: Any, client: redis.Redis
) -> None:
    send(coordinator, 40)
    stored = client.hget("ao:messages:worker:1", "message-20")
    client.hset("ao:messages:worker:1", "message-20", stored.replace(',"', ',\n"'))
    client.hset("ao:messages:worker:1", "message-30", "two\nlines")
    received = coordinator.receive_batch(WORKER, 40)
    assert names(received) == [number for number in range(40) if number != 30]
    assert coordinator.dead_letter(WORKER, "message-30").raw == b"two\nlines"
    assert all(coordinator.ack_batch(WORKER, [one.token for one in received]))


def test_reservations_of_earlier_versions_are_settled_and_recovered(
    client: redis.Redis, coordinator: Any
) -> None:
    """Earlier versions wrote one entry for each message of a batch."""
    send(coordinator, 4)
    client.zremrangebyrank("ao:sched:worker:1:prio:5", 0, -1)
    tokens = ["res_0123456789abcdef", *(f"res_0123456789abcdef-{place}" for place in (2, 3, 4))]
    far = (client.time()[0] + 60) * 1_000_000
    for number, (token, deadline) in enumerate(zip(tokens, (far, far, far, 1), strict=True)):
        client.hset("ao:reserved:worker:1", token, f"1:{deadline} message-{number}")
        client.zadd("ao:reserved_deadlines:worker:1", {token: deadline})
    assert coordinator.nack(WORKER, tokens[2], FailureType.PERMANENT) is True
    assert coordinator.ack_batch(WORKER, tokens) == [True, True, False, False]
    assert attempts(coordinator.receive_batch(WORKER, 9)) == {3: 1}
    assert client.hlen("ao:reserved:worker:1") == 1


def test_a_deadline_without_a_reservation_does_not_block_receivers(client: redis.Redis) -> None:
    box = SyncMessageCoordinator(client)
    client.zadd("ao:reserved_deadlines:worker:1", {"res_0123456789abcdef+": 1, "res_0": 1})
    box.send_message(ASKER, WORKER, sample(1))
    assert names(box.receive_batch(WORKER, 2)) == [1]
