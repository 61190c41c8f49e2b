"""Reject malformed messages before Celery hands them to the pool.

A Celery worker takes the parts of a message for granted: a body that is not a list of three, or a
time limit that is a text, ends the whole worker, and the message goes back to its queue for the
next one. The guard checks the form of a message, rejects what no Celery client sends, and logs it.
"""

from __future__ import annotations

import binascii
import functools
import logging
import struct
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

log = logging.getLogger("flowengine")

_TEXTS = ("task", "id")
_OPTIONAL_TEXTS = (
    *("argsrepr", "eta", "expires", "group", "kwargsrepr", "lang", "origin", "parent_id"),
    *("root_id", "shadow"),
)
_SIGNATURE_LISTS = ("callbacks", "chain", "errbacks")
#: Longest header, in bytes of UTF-8, that Celery also sends as a property of AMQP.
_LONGEST = 255
#: Raised by Celery for a message of another form than it expects, and by amqp (`struct.error`) for
#: a reply that it cannot write. Errors of the connection differ.
_ERRORS = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    struct.error,
)


def guard_consumers() -> None:
    """Check every message of the workers of this process. Idempotent."""
    from celery.worker.consumer import Consumer

    if find_spec("redis") is not None:
        from kombu.transport import redis as transport

        _guard_envelopes(transport)
    create = getattr(Consumer, "create_task_handler", None)
    if create is None or hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def create_guarded(consumer: Any, *args: Any, **kwargs: Any) -> Any:
        handle = create(consumer, *args, **kwargs)

        @functools.wraps(handle)
        def handle_sound(message: Any) -> Any:
            if why := malformed(message):
                _reject(message, why)
                return None
            try:
                return handle(message)
            except _ERRORS as problem:
                if isinstance(problem, consumer.connection_errors):
                    raise
                _reject(message, f"{type(problem).__name__}: {problem}")
                return None

        return handle_sound

    Consumer.create_task_handler = create_guarded


def _guard_envelopes(transport: Any) -> None:
    """Drop entries of a Redis list that are no messages of kombu."""
    loads, deliver = getattr(transport, "loads", None), transport.Transport._deliver
    if loads is None or hasattr(deliver, "__wrapped__"):
        return

    @functools.wraps(loads)
    def loads_any(text: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return loads(text, *args, **kwargs)
        except (ValueError, RecursionError):
            return None

    @functools.wraps(deliver)
    def deliver_sound(self: Any, message: Any, queue: str) -> Any:
        if _is_envelope(message):
            # Raised before the message is known to anybody: its body is no base64.
            with suppress(binascii.Error):
                return deliver(self, message, queue)
        log.error(
            "dropped an entry of queue %.80r that is no message; check who can write to the broker",
            queue,
            extra={"action": "message_rejected"},
        )
        return None

    transport.loads, transport.Transport._deliver = loads_any, deliver_sound


def _is_envelope(message: Any) -> bool:
    properties = message.get("properties") if isinstance(message, dict) else None
    if not isinstance(properties, dict) or not isinstance(message.get("headers", {}), dict):
        return False
    return (
        isinstance(message.get("body"), str)
        and isinstance(properties.get("delivery_tag"), str)
        and isinstance(properties.get("delivery_info"), dict)
        and properties.get("body_encoding") in (None, "base64")
    )


def malformed(message: Any) -> str:
    """Return what is wrong with the form of a message; empty if nothing is."""
    headers = message.headers
    if not isinstance(headers, dict):
        return "its headers are no map"
    if "task" not in headers:
        return ""  # of Celery's first protocol, or of another program: Celery tells which
    for name in _TEXTS:
        if not isinstance(headers.get(name), str) or not headers[name]:
            return f"its header {name!r} is no text"
    if len(headers["id"].encode(errors="replace")) > _LONGEST:
        return f"its header 'id' has more than {_LONGEST} bytes"
    for name in _OPTIONAL_TEXTS:
        if not isinstance(headers.get(name), str | None):
            return f"its header {name!r} is no text"
    if not _is_number(headers.get("retries", 0)):
        return "its header 'retries' is no number"
    limits = headers.get("timelimit") or (None, None)
    if (
        not isinstance(limits, list | tuple)
        or len(limits) != 2
        or not all(limit is None or _is_number(limit) for limit in limits)
    ):
        return "its header 'timelimit' is no pair of numbers"
    try:
        payload = message.payload
    except Exception:
        return ""  # Celery logs and rejects what cannot be decoded
    return _malformed_body(payload)


def _malformed_body(payload: Any) -> str:
    if isinstance(payload, dict):
        return "" if "args" in payload else "its body is a map without 'args'"
    if not isinstance(payload, list | tuple) or len(payload) != 3:
        return "its body is no list of arguments, keyword arguments and options"
    args, kwargs, embedded = payload
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        return "its arguments are no list and map"
    if not isinstance(embedded, dict | None):
        return "its options are no map"
    for name in _SIGNATURE_LISTS:
        listed = (embedded or {}).get(name)
        if listed is not None and not (
            isinstance(listed, list) and all(isinstance(one, dict | str) for one in listed)
        ):
            return f"its option {name!r} is no list of signatures"
    chord = (embedded or {}).get("chord")
    return "" if isinstance(chord, dict | str | None) else "its option 'chord' is no signature"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _reject(message: Any, why: str) -> None:
    delivery = message.delivery_info if isinstance(message.delivery_info, dict) else {}
    log.error(
        "rejected a malformed message in queue %.80r: %.200s; no Celery client sends such a "
        "message, so check who can write to the broker",
        delivery.get("routing_key"),
        why,
        extra={"action": "message_rejected"},
    )
    with suppress(Exception):  # it may be acknowledged already
        message.reject()
