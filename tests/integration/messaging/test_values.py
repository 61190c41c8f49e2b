"""A value that JSON cannot carry is refused with its path, and nothing is sent."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest
import redis

from flowengine.errors import NotSendable
from flowengine.messaging import (
    Agent,
    AgentMessage,
    CircuitBreakerConfig,
    CircuitState,
    MessageType,
    RedisAgentRegistry,
    SyncCircuitBreaker,
)
from tests.integration.messaging.samples import ASKER, WORKER, sample


def with_payload(payload: dict[str, Any], number: int = 0) -> AgentMessage:
    return AgentMessage(
        message_id=f"message-{number}",
        sender=ASKER,
        recipient=WORKER,
        message_type=MessageType.EVENT,
        payload=payload,
    )


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


ITSELF: list[Any] = []
ITSELF.append(ITSELF)

REFUSED = {
    "nan": ({"a": [1, {"b": math.nan}]}, r"payload\['a'\]\[1\]\['b'\] is a float of the value nan"),
    "inf": ({"a": math.inf}, r"payload\['a'\] is a float of the value inf"),
    "minus inf": ({"a": (1, -math.inf)}, r"payload\['a'\]\[1\] is a float of the value -inf"),
    "set": ({"a": {1, 2}}, r"payload\['a'\] is a set"),
    "frozenset": ({"a": frozenset()}, r"payload\['a'\] is a frozenset"),
    "bytes": ({"a": {"b": b"text"}}, r"payload\['a'\]\['b'\] is a bytes"),
    "bytes that are no text": ({"a": b"\xff"}, r"payload\['a'\] is a bytes"),
    "date": ({"a": datetime.date(2026, 1, 1)}, r"payload\['a'\] is a date"),
    "object": ({"a": object()}, r"payload\['a'\] is a object"),
    "key": ({"a": {1: 2}}, r"payload\['a'\], key 1 is a int"),
    "surrogate": ({"a": ["half \ud800"]}, r"payload\['a'\]\[0\] is a str"),
    "surrogate in a key": ({"a": {"\ud800": 1}}, r"payload\['a'\], key '\\ud800' is a str"),
    "depth": ({"a": nested(200)}, "structure of more than 190 levels"),
    "far too deep": ({"a": nested(100_000)}, "structure of more than 190 levels"),
    "itself": ({"a": ITSELF}, "structure of more than 190 levels"),
    "digits": ({"a": 10**5000}, r"payload\['a'\] is a int"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_json_cannot_carry_is_refused_with_its_path(
    coordinator: Any, client: redis.Redis, name: str
) -> None:
    payload, says = REFUSED[name]
    message = with_payload({})
    message.payload = payload  # `nested` is too deep for pydantic, too
    with pytest.raises(NotSendable, match=says) as refused:
        coordinator.send_message(ASKER, WORKER, message)
    assert isinstance(refused.value, ValueError)
    assert "message 'message-0' cannot be sent" in str(refused.value)
    with pytest.raises(NotSendable, match=says):
        coordinator.send_batch(ASKER, WORKER, [*map(sample, range(1, 600)), message])
    with pytest.raises(NotSendable, match=says):
        coordinator.broadcast_message(ASKER, message, [WORKER, ASKER])
    with pytest.raises(NotSendable, match=says):
        coordinator.request(ASKER, WORKER, message, timeout=1)
    assert client.keys() == [], "nothing was sent"


def test_a_response_is_refused_too(coordinator: Any) -> None:
    coordinator.send_message(ASKER, WORKER, with_payload({}))
    received = coordinator.receive(WORKER)
    with pytest.raises(NotSendable, match=r"the response to 'message-0'.*payload\['a'\] is a set"):
        coordinator.respond(received, {"a": {1}})


CARRIED = {
    "numbers": {"a": 1, "b": -2.5, "c": 10**30, "d": 1e300, "e": 0},
    "texts": {"a": "", "b": 'quote " and \\', "c": "line\nbreak\r\u2028", "d": "für 你好 ☕"},
    "words": {"a": None, "b": True, "c": False},
    "containers": {"a": [], "b": {}, "c": [[1, [2]], {"d": {"e": []}}]},
    "fields of ours": {"sender": {"type": "x"}, "a": ',"sender":{"type":"evil"}}'},
    "depth": {"a": nested(188)},
    "empty": {},
}


@pytest.mark.parametrize("name", CARRIED)
def test_json_arrives_as_it_was_sent(coordinator: Any, name: str) -> None:
    coordinator.send_message(ASKER, WORKER, with_payload(CARRIED[name]))
    coordinator.send_batch(ASKER, WORKER, [with_payload(CARRIED[name], 1), sample(2)])
    received = coordinator.receive_batch(WORKER, 3)
    assert [one.message.payload for one in received[:2]] == [CARRIED[name]] * 2
    assert received[0].message.sender == ASKER


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1, "5", 1e300])
def test_a_time_that_is_no_number_of_seconds_is_refused(coordinator: Any, seconds: Any) -> None:
    coordinator.send_message(ASKER, WORKER, sample(1))
    with pytest.raises(ValueError, match="visibility_timeout must be a number of seconds"):
        coordinator.receive(WORKER, visibility_timeout=seconds)
    token = coordinator.receive(WORKER).token
    with pytest.raises(ValueError, match="visibility_timeout must be a number of seconds"):
        coordinator.extend(WORKER, token, seconds)
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        coordinator.request(ASKER, WORKER, sample(2), timeout=seconds)
    assert coordinator.ack(WORKER, token) is True


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_a_delay_without_an_end_is_refused(coordinator: Any, seconds: float) -> None:
    with pytest.raises(ValueError, match="delay must be a number of seconds"):
        coordinator.send_message(ASKER, WORKER, sample(1), delay=seconds)
    with pytest.raises(ValueError, match="expires_in must be a number of seconds"):
        coordinator.send_message(ASKER, WORKER, sample(1), expires_in=seconds)
    with pytest.raises(ValueError, match="not nan"):
        coordinator.receive(WORKER, timeout=math.nan)


def test_a_status_that_json_cannot_carry_is_refused_and_stops_no_heartbeats(
    client: redis.Redis, redis_server: Any
) -> None:
    agent = Agent(agent_id=WORKER, name="worker", status={"load": math.nan})
    with redis.Redis.from_url(redis_server.url) as connection:
        registry = RedisAgentRegistry(connection, heartbeat_ttl_s=3, heartbeat_interval_s=0.01)
        with pytest.raises(NotSendable, match=r"status\['load'\] is a float of the value nan"):
            registry.register(agent)
        agent.status["load"] = 0.5
        with registry:
            registry.register(agent)
            agent.status["load"] = math.inf
            registry.start_heartbeats()
            while not registry._error_logged:
                pass
            agent.status["load"] = 0.75
            while registry.list_agents()[0]["status"] != {"load": 0.75}:
                pass


def test_the_failures_of_an_open_breaker_are_those_that_opened_it(redis_server: Any) -> None:
    config = CircuitBreakerConfig(failure_threshold=3, timeout_seconds=0.05, success_threshold=1)
    with redis.Redis.from_url(redis_server.url) as connection:
        breaker = SyncCircuitBreaker(connection, "shop", config)
        for _ in range(3):
            breaker.failure(breaker.permit())
        opened = breaker.snapshot()
        assert (opened.state, opened.failures) == (CircuitState.OPEN, 3)
        breaker.failure(_probe(breaker))
        reopened = breaker.snapshot()
        assert (reopened.state, reopened.failures) == (CircuitState.OPEN, 4)
        breaker.success(_probe(breaker))
        closed = breaker.snapshot()
        assert (closed.state, closed.failures) == (CircuitState.CLOSED, 0)


def _probe(breaker: SyncCircuitBreaker) -> Any:
    while not (permit := breaker.permit()).granted:
        pass
    return permit
