"""Models, keys and errors, without a server."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from pydantic import ValidationError

from flowengine import messaging
from flowengine.errors import FlowengineError
from flowengine.messaging import (
    AgentId,
    AgentMessage,
    AgentRegistryError,
    CircuitBreakerOpenError,
    MessageCoordinatorError,
    MessagePriority,
    MessageType,
    RequestTimeout,
)
from flowengine.messaging.keys import Keys, agent_of, endpoint


def test_every_exported_name_exists() -> None:
    assert [name for name in messaging.__all__ if not hasattr(messaging, name)] == []


def test_a_message_id_has_at_least_six_characters() -> None:
    agent = AgentId(type="a")
    with pytest.raises(ValidationError):
        AgentMessage(
            message_id="short", sender=agent, recipient=agent, message_type=MessageType.EVENT
        )


def test_a_message_survives_a_json_round_trip() -> None:
    agent = AgentId(type="a", instance="1")
    message = AgentMessage(
        message_id="message-1",
        sender=agent,
        recipient=agent,
        message_type=MessageType.REQUEST,
        payload={"text": 'ä"\n'},
        priority=MessagePriority.HIGH,
    )
    assert AgentMessage.model_validate_json(message.model_dump_json()) == message


@pytest.mark.parametrize(
    "agent",
    [
        AgentId(type="a"),
        AgentId(type="a", instance="b"),
        AgentId(type="a:b", instance="c%3Ad"),
        AgentId(type="{a}", instance="größe:1"),
    ],
    ids=str,
)
def test_an_endpoint_identifies_its_agent(agent: AgentId) -> None:
    assert agent_of(endpoint(agent)) == agent


def test_keys_are_as_documented() -> None:
    names = ["queue", "high", "reserved", "deadlines", "dlq", "subs", "agent", "agents_index"]
    keys = Keys("myapp").named(names, endpoint(AgentId(type="t", instance="i")))
    assert [key.decode() for key in keys] == [
        "myapp:queue:t:i",
        "myapp:sched:t:i:prio:9",
        "myapp:reserved:t:i",
        "myapp:reserved_deadlines:t:i",
        "myapp:dlq:t:i",
        "myapp:subs:t:i",
        "myapp:agents:t:i",
        "myapp:agents:index",
    ]


@pytest.mark.parametrize(
    "error",
    [
        MessageCoordinatorError("send to a/default", "ConnectionError: refused"),
        RequestTimeout("a/default", "message-1", 2.5),
        AgentRegistryError("register a/default", "another has it"),
        CircuitBreakerOpenError("shop", 1.5, "half open"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_pickling(error: FlowengineError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_an_import_without_redis_names_the_extra_to_install() -> None:
    script = "import sys; sys.modules['redis'] = None; import flowengine, flowengine.messaging"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install 'flowengine[redis]'" in done.stderr
