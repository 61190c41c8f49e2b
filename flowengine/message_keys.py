"""Signatures of Celery messages: an HMAC with SHA-256 under keys that all processes share.

A signature covers the name of the task and its arguments. A wake-up is idempotent, so its signature
may be used again. A message that has an effect each time also has its id and an expiry signed: a
copy under another id, or a late copy, is refused.
"""

from __future__ import annotations

import hmac
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from flowengine.settings import Settings

#: The header of a message that holds its signature.
HEADER = "flowengine_signature"
#: Seconds for which `signed_message` signs by default.
ONE_DAY = 86_400

_VERSION = "1"
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class MessageKeys:
    """The keys of this process: the first one signs, all of them verify."""

    def __init__(self, text: str = "") -> None:
        """`text` is the setting `message_keys`: keys separated by commas; empty for none."""
        self._keys = [key.strip().encode() for key in text.split(",") if key.strip()]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def headers(
        self,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        message_id: str = "",
        expires: int = 0,
    ) -> dict[str, str]:
        """Return the headers that sign a message; none without a key.

        `expires` is in seconds since the epoch; 0 for a wake-up, which has no id signed either.
        """
        if not self._keys:
            return {}
        digest = _digest(self._keys[0], _signed(task, args, kwargs or {}, message_id, expires))
        return {HEADER: f"{_VERSION}.{expires}.{digest}"}

    def problem(
        self,
        given: object,
        task: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        message_id: str = "",
        now: float | None = None,
    ) -> str:
        """Return the fault of a signature; empty if it is valid.

        Without `now` it must be that of a wake-up, which signs neither an id nor an expiry.
        """
        if not isinstance(given, str):
            return "it is not signed"
        version, _, rest = given.partition(".")
        expiry, _, digest = rest.partition(".")
        # Twelve digits: `int` takes more in other alphabets, and for seconds in the thousands.
        if version != _VERSION or not (expiry.isascii() and expiry.isdigit() and len(expiry) < 13):
            return "its signature has an unknown form"
        expires = int(expiry)
        try:
            text = _signed(task, args, kwargs, message_id, expires)
        except (TypeError, ValueError, RecursionError):
            return "its arguments are not JSON"
        sent = digest.encode(errors="replace")
        if not any(hmac.compare_digest(_digest(key, text).encode(), sent) for key in self._keys):
            return "its signature is of another key or another message"
        if (now is None) != (expires == 0):
            return "its signature is of another kind of message"
        return "its signature has expired" if now is not None and now >= expires else ""


def signed_message(
    task: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    keys: str | None = None,
    seconds: float = ONE_DAY,
) -> dict[str, Any]:
    """Return the arguments of `Celery.send_task` for a signed message.

        client.send_task(**signed_message("flowengine.execute", ("shop.order", {"n": 1})))

    The message is accepted for that many `seconds`. `keys` is by default the setting
    `message_keys` of the environment; without one the message is not signed.
    """
    known = MessageKeys(Settings.from_environment().message_keys if keys is None else keys)
    message_id, expires = str(uuid.uuid4()), round(time.time() + seconds)
    headers = known.headers(task, args, kwargs, message_id=message_id, expires=expires)
    return {
        "name": task,
        "args": list(args),
        "kwargs": dict(kwargs or {}),
        "task_id": message_id,
        "headers": headers,
    }


def _signed(
    task: str, args: Sequence[Any], kwargs: Mapping[str, Any], message_id: str, expires: int
) -> bytes:
    """Return the text that is signed: JSON with sorted keys and without spaces, in ASCII."""
    return _encode(["flowengine", task, args, kwargs, message_id, expires]).encode()


def _digest(key: bytes, text: bytes) -> str:
    return hmac.digest(key, text, "sha256").hex()
