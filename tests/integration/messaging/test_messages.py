"""The promises of both coordinators about messages."""

from __future__ import annotations

import inspect
import threading
import time
from typing import Any

import pytest
import redis
from pydantic import ValidationError

from flowengine.messaging import (
    AgentId,
    CoordinatorConfig,
    FailureType,
    MessageCoordinatorError,
    MessageType,
    RedisMessageCoordinator,
    RequestTimeout,
    SyncMessageCoordinator,
)
from tests.integration.messaging.samples import ASKER, HIGH, LOW, NORMAL, WORKER, sample
from tests.servers import RedisServer


def names(received: list[Any]) -> list[Any]:
    return [one.queue_message.message.payload["name"] for one in received]


# --- sending and receiving ---


def test_a_message_arrives_as_it_was_sent(coordinator: Any) -> None:
    result = coordinator.send_message(
        ASKER, WORKER, sample(1, payload={"text": "größer", "n": [1]})
    )
    assert (result.delivered, result.error, result.duplicate) == (True, None, False)
    assert result.message_id == "message-1"
    received = coordinator.receive(WORKER)
    message = received.queue_message.message
    assert message.payload == {"text": "größer", "n": [1]}
    assert (message.sender, message.recipient) == (ASKER, WORKER)
    assert message.timestamp is not None
    assert received.token.startswith("res_")
    assert received.queue_message.delivery_attempts == 0
    assert received.visibility_deadline > received.queue_message.enqueued_at


def test_an_agent_without_messages_receives_none(coordinator: Any) -> None:
    assert coordinator.receive(WORKER) is None
    coordinator.send_message(ASKER, AgentId(type="worker", instance="2"), sample(1))
    assert coordinator.receive(WORKER) is None


def test_no_instance_and_the_default_instance_are_one_agent(coordinator: Any) -> None:
    coordinator.send_message(ASKER, AgentId(type="worker"), sample(1))
    assert coordinator.receive(AgentId(type="worker", instance="default")) is not None


def test_colons_and_braces_in_names_keep_agents_apart(coordinator: Any) -> None:
    one, other = AgentId(type="a:b", instance="c{}"), AgentId(type="a", instance="b:c{}")
    coordinator.send_message(ASKER, one, sample(1))
    assert coordinator.receive(other) is None
    assert coordinator.receive(one) is not None


def test_messages_are_ordered_by_priority_and_then_by_time(coordinator: Any) -> None:
    for name, priority in ((1, LOW), (2, NORMAL), (3, HIGH), (4, NORMAL)):
        coordinator.send_message(ASKER, WORKER, sample(name, priority=priority))
    assert names([coordinator.receive(WORKER) for _ in range(4)]) == [3, 2, 4, 1]


def test_a_batch_keeps_its_order_regardless_of_its_ids(coordinator: Any) -> None:
    backwards = [sample(number) for number in range(99, 9, -1)]
    results = coordinator.send_batch(ASKER, WORKER, backwards)
    assert [result.message_id for result in results] == [one.message_id for one in backwards]
    assert names(coordinator.receive_batch(WORKER, 200)) == list(range(99, 9, -1))


def test_a_batch_is_acknowledged_token_by_token(coordinator: Any) -> None:
    coordinator.send_batch(ASKER, WORKER, [sample(number) for number in range(3)])
    tokens = [one.token for one in coordinator.receive_batch(WORKER, 3)]
    settled = coordinator.ack_batch(WORKER, [tokens[0], "res_unknown", tokens[2], tokens[0]])
    assert settled == [True, False, True, False]
    assert coordinator.depths(WORKER).reserved == 1


def test_a_broadcast_has_a_result_for_each_recipient(coordinator: Any) -> None:
    others = [AgentId(type="worker", instance=str(number)) for number in range(3)]
    results = coordinator.broadcast_message(ASKER, sample(1), others)
    assert [result.delivered for result in results] == [True] * 3
    for other in others:
        assert coordinator.receive(other).queue_message.message.recipient == other


def test_low_priority_starves_unless_fairness_is_configured(coordinator: Any) -> None:
    def deliveries_until_low() -> int:
        for count in range(1, 50):
            coordinator.send_message(ASKER, WORKER, sample(f"high-{count}", priority=HIGH))
            received = coordinator.receive(WORKER)
            coordinator.ack(WORKER, received.token)
            if received.queue_message.priority is LOW:
                return count
        return 50

    coordinator.configure(dedup_window=0)
    coordinator.send_message(ASKER, WORKER, sample("low", priority=LOW))
    assert deliveries_until_low() == 50
    coordinator.configure(fairness=5)
    assert deliveries_until_low() <= 10


# --- settling ---


def test_an_acknowledged_message_leaves_no_keys(coordinator: Any, client: redis.Redis) -> None:
    coordinator.configure(dedup_window=0)
    coordinator.send_message(ASKER, WORKER, sample(1), expires_in=60)
    token = coordinator.receive(WORKER).token
    assert coordinator.ack(WORKER, token) is True
    assert coordinator.ack(WORKER, token) is False
    coordinator.recover_pending()
    assert client.keys() == ["ao:config"], "an agent without messages has no keys"


def test_an_unknown_token_settles_nothing(coordinator: Any) -> None:
    coordinator.send_message(ASKER, WORKER, sample(1))
    assert coordinator.ack(WORKER, "res_unknown") is False
    assert coordinator.nack(WORKER, "res_unknown") is False
    assert coordinator.extend(WORKER, "res_unknown", 5) is False
    assert coordinator.depths(WORKER).total == 1


def test_a_late_acknowledgement_changes_nothing(coordinator: Any) -> None:
    coordinator.send_message(ASKER, WORKER, sample(1))
    token = coordinator.receive(WORKER, visibility_timeout=0).token
    before = coordinator.depths(WORKER)
    assert coordinator.ack(WORKER, token) is False
    assert coordinator.nack(WORKER, token) is False
    assert coordinator.extend(WORKER, token, 60) is False
    assert coordinator.depths(WORKER).model_dump(exclude={"oldest_age"}) == before.model_dump(
        exclude={"oldest_age"}
    )
    again = coordinator.receive(WORKER)
    assert again.queue_message.delivery_attempts == 1
    assert coordinator.ack(WORKER, token) is False
    assert coordinator.ack(WORKER, again.token) is True


def test_an_extended_reservation_outlives_its_first_deadline(coordinator: Any) -> None:
    coordinator.send_message(ASKER, WORKER, sample(1))
    token = coordinator.receive(WORKER, visibility_timeout=0.2).token
    assert coordinator.extend(WORKER, token, 60) is True
    assert coordinator.receive(WORKER, timeout=0.4) is None
    assert coordinator.ack(WORKER, token) is True


def test_backoff_grows_by_the_factor_up_to_the_maximum(
    coordinator: Any, client: redis.Redis
) -> None:
    coordinator.configure(retry_attempts=9, backoff_base=1, backoff_factor=2, backoff_max=30)
    coordinator.send_message(ASKER, WORKER, sample(1))
    schedule = "ao:sched:worker:1:prio:5"
    waits = []
    for _ in range(7):
        coordinator.nack(WORKER, coordinator.receive(WORKER).token, error="not yet")
        seconds, micros = client.time()
        waits.append(round(client.zscore(schedule, "message-1") / 1e6 - seconds - micros / 1e6))
        client.zadd(schedule, {"message-1": 0})  # the backoff is over
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_jitter_shortens_backoff_and_never_lengthens_it(
    coordinator: Any, client: redis.Redis
) -> None:
    coordinator.configure(backoff_base=100, backoff_max=100, backoff_jitter=0.5)
    coordinator.send_batch(ASKER, WORKER, [sample(number) for number in range(20)])
    for received in coordinator.receive_batch(WORKER, 20):
        coordinator.nack(WORKER, received.token)
    seconds, _ = client.time()
    scores = client.zrange("ao:sched:worker:1:prio:5", 0, -1, withscores=True)
    waits = [due / 1e6 - seconds for _, due in scores]
    assert min(waits) > 48
    assert max(waits) < 102
    assert max(waits) - min(waits) > 1


def test_a_rejected_message_is_redelivered_with_its_error(coordinator: Any) -> None:
    coordinator.configure(backoff_base=0)
    coordinator.send_message(ASKER, WORKER, sample(1))
    coordinator.nack(WORKER, coordinator.receive(WORKER).token, error="no paper")
    again = coordinator.receive(WORKER).queue_message
    assert (again.delivery_attempts, again.last_error) == (1, "no paper")


def test_a_message_that_is_rejected_too_often_becomes_a_dead_letter(coordinator: Any) -> None:
    coordinator.configure(retry_attempts=3, backoff_base=0)
    coordinator.send_message(ASKER, WORKER, sample(1))
    for number in range(1, 5):
        coordinator.nack(WORKER, coordinator.receive(WORKER).token, error=f"error {number}")
    assert coordinator.receive(WORKER) is None
    (letter,) = coordinator.dead_letters(WORKER)
    assert (letter.message_id, letter.attempts) == ("message-1", 4)
    assert (letter.failure, letter.error) == (FailureType.TRANSIENT, "error 4")
    assert letter.message.payload == {"name": 1}
    assert letter.died_at.tzinfo is not None


def test_a_permanent_failure_is_not_retried(coordinator: Any) -> None:
    coordinator.send_message(ASKER, WORKER, sample(1))
    token = coordinator.receive(WORKER).token
    assert coordinator.nack(WORKER, token, FailureType.PERMANENT, "wrong address") is True
    assert coordinator.receive(WORKER) is None
    letter = coordinator.dead_letter(WORKER, "message-1")
    assert (letter.failure, letter.error) == (FailureType.PERMANENT, "wrong address")


def test_a_message_whose_consumers_always_die_becomes_a_dead_letter(coordinator: Any) -> None:
    coordinator.configure(retry_attempts=2)
    coordinator.send_message(ASKER, WORKER, sample(1))
    deliveries = 0
    while coordinator.receive(WORKER, visibility_timeout=0) is not None:
        deliveries += 1
    assert deliveries == 3
    (letter,) = coordinator.dead_letters(WORKER)
    assert (letter.failure, letter.attempts) == (FailureType.TIMEOUT, 3)


def test_expired_reservations_are_recovered_for_one_agent_and_for_all(coordinator: Any) -> None:
    others = [AgentId(type="worker", instance=str(number)) for number in range(3)]
    coordinator.broadcast_message(ASKER, sample(1), others)
    for other in others:
        coordinator.receive(other, visibility_timeout=0)
    assert coordinator.recover_pending(others[0]) == 1
    assert coordinator.recover_pending() == 2
    assert coordinator.recover_pending() == 0
    assert all(coordinator.receive(other) for other in others)


# --- waiting ---


def test_a_receiver_waits_for_a_message(coordinator: Any, redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as connection:
        sender = SyncMessageCoordinator(connection)
        timer = threading.Timer(0.2, sender.send_message, (ASKER, WORKER, sample(1)))
        timer.start()
        assert coordinator.receive(WORKER, timeout=20) is not None
        timer.join()


def test_a_receiver_waits_no_longer_than_its_timeout_and_leaves_no_keys(
    coordinator: Any, client: redis.Redis
) -> None:
    assert coordinator.receive(WORKER, timeout=0.05) is None
    assert coordinator.receive(WORKER, timeout=0) is None
    assert all(client.pttl(key) > 0 for key in client.scan_iter())  # keys that expire


def test_a_receiver_waits_for_delayed_messages_and_expiring_reservations(coordinator: Any) -> None:
    coordinator.send_message(ASKER, WORKER, sample(1), delay=0.1)
    assert coordinator.receive(WORKER) is None
    assert coordinator.depths(WORKER).delayed == 1
    assert coordinator.receive(WORKER, 0.1, timeout=20) is not None
    again = coordinator.receive(WORKER, timeout=20)
    assert again.queue_message.delivery_attempts == 1


def test_only_waiting_receivers_are_woken(coordinator: Any, client: redis.Redis) -> None:
    coordinator.send_batch(ASKER, WORKER, [sample(number) for number in range(100)])
    assert client.exists("ao:bell:worker:1") == 0
    coordinator.receive_batch(WORKER, 100, visibility_timeout=60)
    assert coordinator.receive(WORKER, timeout=0) is None
    coordinator.send_batch(ASKER, WORKER, [sample(number) for number in range(100, 200)])
    assert client.llen("ao:bell:worker:1") == 64
    coordinator.receive_batch(WORKER, 100, visibility_timeout=60)
    # Leftover wake-ups do not make a receiver poll.
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert coordinator.receive(WORKER, timeout=0.1) is None
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before < 5


# --- capacity, duplicates, expiry ---


def test_a_full_queue_refuses(coordinator: Any) -> None:
    coordinator.configure(queue_size=3)
    results = coordinator.send_batch(ASKER, WORKER, [sample(number) for number in range(5)])
    assert [result.delivered for result in results] == [True, True, True, False, False]
    assert results[3].error == "queue full"


def test_reserved_and_delayed_messages_count_towards_the_capacity_and_dead_letters_do_not(
    coordinator: Any,
) -> None:
    coordinator.configure(queue_size=2)
    coordinator.send_message(ASKER, WORKER, sample(1))
    coordinator.send_message(ASKER, WORKER, sample(2), delay=60)
    token = coordinator.receive(WORKER).token
    assert coordinator.send_message(ASKER, WORKER, sample(3)).error == "queue full"
    coordinator.nack(WORKER, token, FailureType.PERMANENT)
    assert coordinator.send_message(ASKER, WORKER, sample(3)).delivered


def test_a_message_id_is_enqueued_once(coordinator: Any) -> None:
    assert not coordinator.send_message(ASKER, WORKER, sample(1)).duplicate
    again = coordinator.send_message(ASKER, WORKER, sample(1))
    assert (again.delivered, again.duplicate) == (True, True)
    token = coordinator.receive(WORKER).token
    assert coordinator.send_message(ASKER, WORKER, sample(1)).duplicate
    coordinator.ack(WORKER, token)
    assert coordinator.send_message(ASKER, WORKER, sample(1)).duplicate
    assert coordinator.receive(WORKER) is None


def test_a_full_queue_accepts_a_duplicate(coordinator: Any) -> None:
    coordinator.configure(queue_size=1)
    coordinator.send_message(ASKER, WORKER, sample(1))
    assert coordinator.send_message(ASKER, WORKER, sample(1)).delivered


def test_ids_are_forgotten_after_the_deduplication_window(coordinator: Any) -> None:
    coordinator.configure(dedup_window=0)
    coordinator.send_message(ASKER, WORKER, sample(1))
    coordinator.ack(WORKER, coordinator.receive(WORKER).token)
    assert not coordinator.send_message(ASKER, WORKER, sample(1)).duplicate


def test_the_number_of_remembered_ids_is_limited_by_the_queue_size(
    coordinator: Any, client: redis.Redis
) -> None:
    coordinator.configure(queue_size=5)
    for number in range(12):
        coordinator.send_message(ASKER, WORKER, sample(number))
        coordinator.ack(WORKER, coordinator.receive(WORKER).token)
    assert client.zcard("ao:seen:worker:1") == 5
    assert client.pttl("ao:seen:worker:1") > 0


def test_an_expired_message_becomes_a_dead_letter_and_makes_room(
    coordinator: Any, client: redis.Redis
) -> None:
    coordinator.configure(queue_size=2)
    coordinator.send_message(ASKER, WORKER, sample(1), expires_in=60)
    client.zadd("ao:expiries:worker:1", {"message-1": 1})  # expired
    coordinator.send_message(ASKER, WORKER, sample(2), delay=60)
    assert coordinator.send_message(ASKER, WORKER, sample(3)).delivered
    (letter,) = coordinator.dead_letters(WORKER)
    assert (letter.message_id, letter.failure) == ("message-1", FailureType.TIMEOUT)
    assert letter.error.startswith("expired")


def test_a_reserved_message_does_not_expire(coordinator: Any, client: redis.Redis) -> None:
    coordinator.send_message(ASKER, WORKER, sample(1), expires_in=60)
    token = coordinator.receive(WORKER, visibility_timeout=60).token
    assert client.zcard("ao:expiries:worker:1") == 0
    coordinator.nack(WORKER, token)
    assert client.zcard("ao:expiries:worker:1") == 1


def test_invalid_times_are_refused(coordinator: Any) -> None:
    with pytest.raises(ValueError, match="delay"):
        coordinator.send_message(ASKER, WORKER, sample(1), delay=-1)
    with pytest.raises(ValueError, match="expires_in"):
        coordinator.send_message(ASKER, WORKER, sample(1), expires_in=0)


# --- unreadable messages ---


@pytest.mark.parametrize(
    "stored",
    ["garbage", "", "5 event 1 0 not json", '5 event 1 0 {"half": ', "7 event 1 0 {}"],
)
def test_an_unreadable_message_becomes_a_dead_letter_without_affecting_others(
    coordinator: Any, client: redis.Redis, stored: str
) -> None:
    coordinator.send_batch(ASKER, WORKER, [sample(1), sample(2)])
    client.hset("ao:messages:worker:1", "message-1", stored)
    assert names([coordinator.receive(WORKER)]) == [2]
    (letter,) = coordinator.dead_letters(WORKER)
    assert (letter.message_id, letter.failure) == ("message-1", FailureType.PERMANENT)
    assert letter.message is None
    assert letter.raw.decode() == stored
    assert coordinator.depths(WORKER).total == 1


def test_bytes_that_are_not_utf_8_become_a_dead_letter(
    coordinator: Any, client: redis.Redis
) -> None:
    coordinator.send_message(ASKER, WORKER, sample(1))
    client.hset("ao:messages:worker:1", "message-1", b"5 event 1 0 \xff\xfe")
    assert coordinator.receive(WORKER) is None
    assert coordinator.dead_letter(WORKER, "message-1").raw.endswith(b"\xff\xfe")


def test_a_message_that_becomes_unreadable_while_reserved_becomes_a_dead_letter(
    coordinator: Any, client: redis.Redis
) -> None:
    coordinator.send_batch(ASKER, WORKER, [sample(1), sample(2)])
    token = coordinator.receive(WORKER).token
    coordinator.receive(WORKER, visibility_timeout=0)
    client.hset("ao:messages:worker:1", mapping={"message-1": "?", "message-2": "?"})
    assert coordinator.nack(WORKER, token) is True
    assert coordinator.recover_pending(WORKER) == 0
    assert coordinator.depths(WORKER).dead == 2


# --- dead letters ---


def test_dead_letters_are_listed_in_pages_the_oldest_first(coordinator: Any) -> None:
    coordinator.send_batch(ASKER, WORKER, [sample(number) for number in range(5)])
    for received in coordinator.receive_batch(WORKER, 5):
        coordinator.nack(WORKER, received.token, FailureType.PERMANENT)
    assert [one.message_id for one in coordinator.dead_letters(WORKER, first=1, limit=2)] == [
        "message-1",
        "message-2",
    ]
    assert coordinator.dead_letter(WORKER, "message-9") is None


def test_a_requeued_message_has_no_attempts(coordinator: Any) -> None:
    coordinator.configure(retry_attempts=0)
    coordinator.send_batch(ASKER, WORKER, [sample(1, priority=HIGH), sample(2), sample(3)])
    for received in coordinator.receive_batch(WORKER, 3):
        coordinator.nack(WORKER, received.token, error="down")
    assert coordinator.requeue_dead_letters(WORKER, ["message-3", "message-9"]) == 1
    assert coordinator.requeue_dead_letters(WORKER) == 2
    again = coordinator.receive_batch(WORKER, 3)
    assert names(again) == [1, 3, 2]
    assert {one.queue_message.delivery_attempts for one in again} == {0}
    assert coordinator.depths(WORKER).dead == 0


def test_requeueing_stops_when_the_queue_is_full(coordinator: Any) -> None:
    coordinator.send_batch(ASKER, WORKER, [sample(number) for number in range(3)])
    for received in coordinator.receive_batch(WORKER, 3):
        coordinator.nack(WORKER, received.token, FailureType.PERMANENT)
    coordinator.configure(queue_size=2)
    assert coordinator.requeue_dead_letters(WORKER) == 2
    assert coordinator.depths(WORKER).dead == 1


def test_purged_dead_letters_are_deleted(coordinator: Any, client: redis.Redis) -> None:
    coordinator.send_batch(ASKER, WORKER, [sample(number) for number in range(4)])
    for received in coordinator.receive_batch(WORKER, 4):
        coordinator.nack(WORKER, received.token, FailureType.PERMANENT)
    assert coordinator.purge_dead_letters(WORKER, ["message-2", "message-9"]) == 1
    assert coordinator.purge_dead_letters(WORKER, limit=2) == 2
    assert coordinator.purge_dead_letters(WORKER) == 1
    coordinator.recover_pending()
    assert client.keys() == []


def test_surplus_dead_letters_drop_the_oldest_and_are_counted(coordinator: Any) -> None:
    coordinator.configure(dlq_size=2)
    coordinator.send_batch(ASKER, WORKER, [sample(number) for number in range(5)])
    for received in coordinator.receive_batch(WORKER, 5):
        coordinator.nack(WORKER, received.token, FailureType.PERMANENT)
    depths = coordinator.depths(WORKER)
    assert (depths.dead, depths.dead_dropped) == (2, 3)
    assert [one.message_id for one in coordinator.dead_letters(WORKER)] == [
        "message-3",
        "message-4",
    ]


# --- requests ---


def test_a_request_gets_its_response(coordinator: Any, redis_server: RedisServer) -> None:
    accepted = []

    def serve() -> None:
        with redis.Redis.from_url(redis_server.url) as connection:
            worker = SyncMessageCoordinator(connection)
            received = worker.receive(WORKER, timeout=20)
            assert received is not None
            accepted.append(worker.respond(received, {"sum": 5}))
            accepted.append(worker.respond(received, {"sum": 6}))
            worker.ack(WORKER, received.token)

    server = threading.Thread(target=serve)
    server.start()
    response = coordinator.request(ASKER, WORKER, sample(1), timeout=20)
    server.join()
    assert response.payload == {"sum": 5}
    assert response.correlation_id == "message-1"
    assert (response.sender, response.recipient) == (WORKER, ASKER)
    assert accepted == [True, False]


def test_a_request_without_response_times_out_and_leaves_no_keys(
    coordinator: Any, client: redis.Redis
) -> None:
    with pytest.raises(RequestTimeout, match="worker/1 did not answer") as caught:
        coordinator.request(ASKER, WORKER, sample(1), timeout=0.05)
    assert isinstance(caught.value, TimeoutError)
    time.sleep(0.05)  # the message expires shortly after the request
    assert coordinator.receive(WORKER) is None  # expired
    coordinator.purge_dead_letters(WORKER)
    coordinator.recover_pending()
    assert client.keys() == []


def test_a_late_response_is_refused(coordinator: Any, client: redis.Redis) -> None:
    coordinator.send_message(ASKER, WORKER, sample(1, message_type=MessageType.REQUEST))
    received = coordinator.receive(WORKER)
    assert coordinator.respond(received, {}) is False
    assert client.keys("ao:answer*") == []


def test_a_refused_request_does_not_wait(coordinator: Any, client: redis.Redis) -> None:
    coordinator.configure(queue_size=1)
    coordinator.send_message(ASKER, WORKER, sample(1))
    with pytest.raises(MessageCoordinatorError, match="queue full"):
        coordinator.request(ASKER, WORKER, sample(2), timeout=60)
    assert client.keys("ao:awaited*") == []


# --- subscriptions and configuration ---


def test_a_subscription_filters_new_and_queued_messages(coordinator: Any) -> None:
    coordinator.send_message(ASKER, WORKER, sample("before"))
    wanted = coordinator.subscribe_to_messages(WORKER, [MessageType.REQUEST])
    assert coordinator.send_message(ASKER, WORKER, sample(1)).error == "not subscribed"
    coordinator.send_message(ASKER, WORKER, sample(2, message_type=MessageType.REQUEST))
    assert names([coordinator.receive(WORKER)]) == [2]
    assert coordinator.receive(WORKER) is None
    assert coordinator.dead_letter(WORKER, "message-before").error.startswith("not subscribed")
    assert coordinator.unsubscribe(wanted) is True
    assert coordinator.unsubscribe(wanted) is False
    assert coordinator.send_message(ASKER, WORKER, sample(3)).delivered


def test_subscriptions_of_one_agent_are_combined(coordinator: Any, client: redis.Redis) -> None:
    first = coordinator.subscribe_to_messages(WORKER, [MessageType.REQUEST, MessageType.EVENT])
    coordinator.subscribe_to_messages(WORKER, [MessageType.EVENT])
    assert first.subscription_id.startswith("sub_")
    coordinator.depths(WORKER)
    assert client.smembers("ao:subs:worker:1") == {"request", "event"}
    coordinator.unsubscribe(first)
    assert client.smembers("ao:subs:worker:1") == {"event"}


def test_a_subscription_without_types_has_no_effect(coordinator: Any) -> None:
    assert coordinator.subscribe_to_messages(WORKER, []).message_types == []
    assert coordinator.send_message(ASKER, WORKER, sample(1)).delivered


def test_the_configuration_is_shared_by_all_processes(
    coordinator: Any, redis_server: RedisServer
) -> None:
    assert coordinator.configuration() == CoordinatorConfig()
    coordinator.configure(queue_size=1, backoff_max=7.5)
    with redis.Redis.from_url(redis_server.url) as connection:
        other = SyncMessageCoordinator(connection)
        assert other.configuration() == CoordinatorConfig(queue_size=1, backoff_max=7.5)
        other.send_message(ASKER, WORKER, sample(1))
        assert other.send_message(ASKER, WORKER, sample(2)).error == "queue full"


@pytest.mark.parametrize(
    "invalid",
    [
        {"queue_size": 0},
        {"retry_attempts": -1},
        {"backoff_base": -0.1},
        {"backoff_factor": 0.5},
        {"backoff_max": float("inf")},
        {"backoff_jitter": 1.1},
        {"dlq_size": 0},
    ],
)
def test_an_invalid_configuration_changes_nothing(
    coordinator: Any, invalid: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        coordinator.configure(dedup_window=5, **invalid)
    assert coordinator.configuration() == CoordinatorConfig()


def test_key_prefixes_are_independent(coordinator: Any, redis_server: RedisServer) -> None:
    coordinator.send_message(ASKER, WORKER, sample(1))
    with redis.Redis.from_url(redis_server.url) as connection:
        assert SyncMessageCoordinator(connection, key_prefix="myapp").receive(WORKER) is None


def test_both_coordinators_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: [str(parameter) for parameter in inspect.signature(member).parameters.values()]
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    sync, with_loop = methods(SyncMessageCoordinator), methods(RedisMessageCoordinator)
    assert with_loop.pop("settle") == ["self"]  # only the asynchronous one writes in the background
    assert sync == with_loop
    for kind in (SyncMessageCoordinator, RedisMessageCoordinator):
        assert inspect.signature(kind.receive).return_annotation == "ReceivedMessage | None"
