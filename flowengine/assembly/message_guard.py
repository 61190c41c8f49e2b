"""Reject malformed messages before Celery hands them to the pool.

A Celery worker takes the parts of a message for granted: a body that is not a list of three, or a
time limit that is a text, ends the whole worker, and the message goes back to its queue for the
next one. The guard checks the form of a message, rejects what no Celery client sends, and logs it.
An error that is raised nevertheless loses that message alone: the place in the pool is given back.
"""

from __future__ import annotations

import binascii
import functools
import logging
import struct
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from flowengine.program.limits import is_deeper
from flowengine.tasks.rare_lines import RareLines

log = logging.getLogger("flowengine")

_TEXTS = ("task", "id")
_OPTIONAL_TEXTS = (
    *("argsrepr", "eta", "expires", "group", "kwargsrepr", "lang", "origin", "parent_id"),
    *("root_id", "shadow"),
)
_SIGNATURE_LISTS = ("callbacks", "chain", "errbacks")
#: Most lists and maps inside each other. Python gives up at twice as many, in the middle of writing
#: the message to a pool child.
_DEEPEST = 400
#: Most bytes of a body, also of one that was compressed.
_LARGEST = 64 * 1024 * 1024
#: Each kind of compression of kombu whose decompressor can stop: not brotli.
_DECOMPRESSORS = {
    "gzip": ("zlib", "decompressobj"),
    "bzip2": ("bz2", "BZ2Decompressor"),
    "xz": ("lzma", "LZMADecompressor"),
}
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
    _guard_pool()
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


def _guard_pool() -> None:
    """Give the place in the pool back when a message cannot be written to a pool child.

    Without it each such message takes one place for ever, until the worker executes nothing.
    """
    from celery.worker.worker import WorkController

    process = getattr(WorkController, "_process_task", None)
    if process is None or hasattr(process, "__wrapped__"):
        return

    @functools.wraps(process)
    def process_or_release(worker: Any, request: Any) -> Any:
        try:
            return process(worker, request)
        except _ERRORS as problem:
            with suppress(AttributeError):  # a pool that has no places
                worker._quick_release()
            _reject(request.message, f"{type(problem).__name__}: {problem}")
            return None

    WorkController._process_task = process_or_release


def bound_decompression() -> None:
    """Decompress no message to more than a body may have. For workers, idempotent.

    Kombu decompresses while it receives: half a megabyte may become a gigabyte before anybody can
    look at it.
    """
    from kombu import compression

    for kind, (module, name) in _DECOMPRESSORS.items():
        with suppress(ImportError, KeyError):  # it is missing, so kombu does not decompress it
            begin = getattr(import_module(module), name)
            encode, content_type = compression.get_encoder(kind)
            compression.register(encode, functools.partial(_decompressed, begin), content_type)


def _decompressed(begin: Callable[[], Any], body: bytes) -> bytes:
    decompressor = begin()
    text: bytes = decompressor.decompress(body, _LARGEST + 1)
    if len(text) > _LARGEST:
        del text, decompressor  # the traceback is kept with the message, and so would they
        raise ValueError(f"its body has more than {_LARGEST:,} bytes when it is decompressed")
    if not decompressor.eof:
        raise ValueError("its compressed body was cut")
    return text


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
            # Raised before the message is known to anybody: its body is no base64, or no text.
            with suppress(binascii.Error, UnicodeError):
                return deliver(self, message, queue)
        _log(queue, "it is no message of kombu")
        return None

    transport.loads, transport.Transport._deliver = loads_any, deliver_sound


def _is_envelope(message: Any) -> bool:
    properties = message.get("properties") if isinstance(message, dict) else None
    if not isinstance(properties, dict) or not isinstance(message.get("headers", {}), dict):
        return False
    info = properties.get("delivery_info")
    return (
        isinstance(message.get("body"), str)
        and isinstance(properties.get("delivery_tag"), str)
        and isinstance(info, dict)
        and all(isinstance(info.get(name), str) for name in ("exchange", "routing_key"))
        and properties.get("body_encoding") in (None, "base64")
    )


def malformed(message: Any) -> str:
    """Return what is wrong with the form of a message; empty if nothing is."""
    headers = message.headers
    if not isinstance(headers, dict):
        return "its headers are no map"
    if is_deeper(headers, _DEEPEST):
        return f"its headers have more than {_DEEPEST} lists and maps inside each other"
    if len(message.body or "") > _LARGEST:
        return f"its body has more than {_LARGEST:,} bytes"
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
    if is_deeper(payload, _DEEPEST):
        return f"its body has more than {_DEEPEST} lists and maps inside each other"
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
    _log(delivery.get("routing_key"), why)
    with suppress(Exception):  # it may be acknowledged already
        message.reject()


_lines = RareLines()


def _log(queue: object, why: str) -> None:
    if count := _lines.due(why.partition(":")[0]):
        log.error(
            "rejected a malformed message in queue %.80r: %.200s; no Celery client sends such a "
            "message, so check who can write to the broker%s",
            queue,
            why,
            f" ({count:,} of this kind since the last line)" if count > 1 else "",
            extra={"action": "message_rejected", "count": count},
        )
