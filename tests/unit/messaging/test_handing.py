"""What comes out of Redis is what went in, and looks as if it had been validated."""

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
from flowengine.messaging.handing import Unfit, received
from flowengine.messaging.letters import Writing

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
    return (head + Writing(one.sender, one.recipient).body(one)).encode()


def handed(*lines: bytes) -> list[ReceivedMessage | Unfit]:
    found = received(TOKEN, [HEAD % len(lines), *lines])
    assert found is not None
    return found


MESSAGES = [
    message(),
    message(payload={"sender": {"type": "x"}, "text": 'ä\n,"sender":{"', "none": None, "n": 1e300}),
    message(priority=MessagePriority.HIGH, message_type=MessageType.REQUEST, correlation_id="c"),
    message(sender=RECIPIENT, recipient=SENDER),
]


@pytest.mark.parametrize("one", MESSAGES)
def test_a_message_is_read_as_if_it_had_been_validated(one: AgentMessage) -> None:
    (found,) = handed(stored(one))
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


def test_what_is_changed_in_one_message_is_not_changed_in_another() -> None:
    one, other = handed(stored(MESSAGES[0]), stored(MESSAGES[0]))
    assert isinstance(one, ReceivedMessage)
    assert isinstance(other, ReceivedMessage)
    one.message.payload["new"] = 1
    one.message.timestamp = "later"
    one.queue_message.last_error = "no"
    assert other.message == MESSAGES[0]
    assert other.queue_message.last_error is None
    assert one.model_dump()["queue_message"]["message"]["timestamp"] == "later"


def test_several_in_few_texts_are_those_that_were_written() -> None:
    texts = [HEAD % 4, b"\n".join(map(stored, MESSAGES[:3])), stored(MESSAGES[3])]
    found = received(TOKEN, texts)
    assert found is not None
    assert [one.message for one in found if isinstance(one, ReceivedMessage)] == MESSAGES
    assert [one.token for one in found] == [TOKEN, f"{TOKEN}-2", f"{TOKEN}-3", f"{TOKEN}-4"]


def test_lines_that_are_not_as_many_as_messages_are_asked_for_again() -> None:
    assert received(TOKEN, [HEAD % 3, stored(MESSAGES[0]) + b"\n" + stored(MESSAGES[1])]) is None


WHOLE = json.loads(message(correlation_id="c").model_dump_json())


@pytest.mark.parametrize(
    "written",
    [
        WHOLE,
        {**WHOLE, "message_type": "response", "more": 1},
        {name: WHOLE[name] for name in ("message_id", "message_type", "sender", "recipient")},
        {**WHOLE, "timestamp": None, "priority": 9},
        dict(reversed(WHOLE.items())),
    ],
)
def test_what_others_wrote_is_read_if_it_is_valid(written: dict[str, Any]) -> None:
    text = b"5 event 1 0 " + json.dumps(written).encode()
    first, second = handed(text, stored(MESSAGES[0]))
    assert isinstance(first, ReceivedMessage)
    assert isinstance(second, ReceivedMessage)
    assert first.message == AgentMessage.model_validate(written)
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
def test_what_is_no_message_is_unfit_and_its_neighbour_is_not(change: dict[str, Any]) -> None:
    body = Writing(SENDER, RECIPIENT).body(message())
    wrong = {**json.loads(body), **change}
    text = b"5 event 1 0 " + json.dumps(wrong, separators=(",", ":")).encode()
    first, second = handed(text, stored(MESSAGES[0]))
    assert isinstance(first, Unfit)
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
def test_what_is_no_text_of_ours_is_unfit(text: bytes) -> None:
    first, second = handed(text, stored(MESSAGES[0]))
    assert isinstance(first, Unfit)
    assert isinstance(second, ReceivedMessage)
