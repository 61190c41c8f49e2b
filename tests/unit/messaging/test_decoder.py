"""A decoded message equals the sent one, as if it had been validated."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from flowengine.messaging import (
    AgentId,
    AgentMessage,
    MessagePriority,
    MessageType,
    QueueMessage,
    ReceivedMessage,
)
from flowengine.messaging.codec import MessageEncoder, Rejected, decode_received

TOKEN = "res_0123456789abcdef"
HEAD = b"1763205000123456 %d - - {}"
SENDER, RECIPIENT = AgentId(type="a", instance='"sender":'), AgentId(type="b")


def message(**fields: Any) -> AgentMessage:
    given = {"message_type": MessageType.EVENT, "timestamp": "2026-01-01", **fields}
    return AgentMessage(
        **{"message_id": "message-1", "sender": SENDER, "recipient": RECIPIENT, **given}
    )


def stored(one: AgentMessage) -> bytes:
    head = f"{one.priority.value} {one.message_type.value} 1763205000123456 0 "
    return (head + MessageEncoder(one.sender, one.recipient).body(one)).encode()


def decoded(*lines: bytes) -> list[ReceivedMessage | Rejected]:
    received = decode_received(TOKEN, [HEAD % len(lines), *lines])
    assert received is not None
    return received


MESSAGES = [
    message(),
    message(payload={"sender": {"type": "x"}, "text": 'ä\n,"sender":{"', "none": None, "n": 1e300}),
    message(priority=MessagePriority.HIGH, message_type=MessageType.REQUEST, correlation_id="c"),
    message(sender=RECIPIENT, recipient=SENDER),
]


@pytest.mark.parametrize("one", MESSAGES)
def test_a_decoded_message_equals_a_validated_one(one: AgentMessage) -> None:
    (found,) = decoded(stored(one))
    assert isinstance(found, ReceivedMessage)
    validated = ReceivedMessage(
        token=TOKEN,
        queue_message=QueueMessage(
            message=one, priority=one.priority, enqueued_at="2025-11-15T11:10:00.123456+00:00"
        ),
        visibility_deadline="2025-11-15T11:10:00.123456+00:00",
    )
    assert found == validated
    assert found.model_dump() == validated.model_dump()
    assert found.model_dump_json() == validated.model_dump_json()
    assert repr(found) == repr(validated)
    assert pickle.loads(pickle.dumps(found)) == found.model_copy(deep=True) == validated
    assert ReceivedMessage.model_validate_json(found.model_dump_json()) == found


def test_changing_one_message_does_not_change_another() -> None:
    one, other = decoded(stored(MESSAGES[0]), stored(MESSAGES[0]))
    assert isinstance(one, ReceivedMessage)
    assert isinstance(other, ReceivedMessage)
    one.message.payload["new"] = 1
    one.message.timestamp = "later"
    one.queue_message.last_error = "no"
    assert other.message == MESSAGES[0]
    assert other.queue_message.last_error is None
    assert one.model_dump()["queue_message"]["message"]["timestamp"] == "later"


def test_several_messages_in_one_string_are_all_decoded() -> None:
    texts = [HEAD % 4, b"\n".join(map(stored, MESSAGES[:3])), stored(MESSAGES[3])]
    found = decode_received(TOKEN, texts)
    assert found is not None
    assert [one.message for one in found if isinstance(one, ReceivedMessage)] == MESSAGES
    assert [one.token for one in found] == [TOKEN, f"{TOKEN}-2", f"{TOKEN}-3", f"{TOKEN}-4"]


def test_a_response_with_a_wrong_number_of_lines_is_requested_again() -> None:
    assert (
        decode_received(TOKEN, [HEAD % 3, stored(MESSAGES[0]) + b"\n" + stored(MESSAGES[1])])
        is None
    )


WHOLE = json.loads(message(correlation_id="c").model_dump_json())


@pytest.mark.parametrize(
    "body",
    [
        WHOLE,
        {**WHOLE, "message_type": "response", "more": 1},
        {name: WHOLE[name] for name in ("message_id", "message_type", "sender", "recipient")},
        {**WHOLE, "timestamp": None, "priority": 9},
        dict(reversed(WHOLE.items())),
    ],
)
def test_a_valid_message_in_another_json_form_is_decoded(body: dict[str, Any]) -> None:
    text = b"5 event 1 0 " + json.dumps(body).encode()
    first, second = decoded(text, stored(MESSAGES[0]))
    assert isinstance(first, ReceivedMessage)
    assert isinstance(second, ReceivedMessage)
    assert first.message == AgentMessage.model_validate(body)
    assert second.message == MESSAGES[0]


@pytest.mark.parametrize(
    "change",
    [
        {"message_id": "short"},
        {"message_id": 1234567},
        {"message_type": "shout"},
        {"message_type": []},
        {"payload": []},
        {"priority": 7},
        {"timestamp": 5},
        {"correlation_id": 5},
        {"sender": {"type": ""}},
        {"recipient": "b"},
    ],
    ids=str,
)
def test_an_invalid_message_is_rejected_without_affecting_others(change: dict[str, Any]) -> None:
    body = MessageEncoder(SENDER, RECIPIENT).body(message())
    wrong = {**json.loads(body), **change}
    text = b"5 event 1 0 " + json.dumps(wrong, separators=(",", ":")).encode()
    first, second = decoded(text, stored(MESSAGES[0]))
    assert isinstance(first, Rejected)
    assert (first.token, isinstance(second, ReceivedMessage)) == (TOKEN, True)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"?",
        b"5 event 1 0 ",
        b"5 event x 0 {}",
        b"x event 1 0 {}",
        b"5 event 1 0 \xff",
        b"5 event 1 0 },{",
    ],
)
def test_malformed_storage_is_rejected_without_affecting_others(text: bytes) -> None:
    first, second = decoded(text, stored(MESSAGES[0]))
    assert isinstance(first, Rejected)
    assert isinstance(second, ReceivedMessage)
