"""Signatures of webhooks: made by the engine, verified by the receiver.

The header ``Flowengine-Signature`` is ``t=1700000000,v1=…``: the time of the delivery, and the
HMAC (SHA-256) of the time, a dot and the body, in hexadecimal digits. While keys are replaced, each
key of the setting `webhook_keys` has a ``v1`` of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Sequence

HEADER = "Flowengine-Signature"
ID_HEADER = "Flowengine-Delivery"  #: the same for each try of a delivery
_TOLERANCE = 300  #: seconds
_TIME = re.compile("[0-9]{1,12}")


def signature(body: bytes, keys: Sequence[str], at: int) -> str:
    """Return the value of the header for a delivery at that time, in seconds."""
    return ",".join([f"t={at}", *(f"v1={_digest(body, key, at)}" for key in keys)])


def verify(
    body: bytes,
    header: str | None,
    keys: Sequence[str],
    *,
    now: float | None = None,
    tolerance: float = _TOLERANCE,
) -> bool:
    """Whether one of these keys signed the body, not longer ago than `tolerance` seconds.

    A receiver passes the body as it came, before it is parsed, and the header, None if it has none,
    and answers 4xx if this is False. Raises ValueError if there is no key or an empty one: with it
    anybody could sign.
    """
    if isinstance(keys, str) or not keys or not all(keys):
        raise ValueError("keys is a list of keys that are not empty: was a variable not set?")
    parts = [part.strip().partition("=") for part in (header or "").split(",")]
    times = [value for name, _, value in parts if name == "t" and _TIME.fullmatch(value)]
    if len(times) != 1:
        return False
    at = int(times[0])
    if abs((time.time() if now is None else now) - at) > tolerance:
        return False
    given = [value.encode(errors="replace") for name, _, value in parts if name == "v1"]
    expected = [_digest(body, key, at).encode() for key in keys]
    return any(hmac.compare_digest(one, value) for one in expected for value in given)


def _digest(body: bytes, key: str, at: int) -> str:
    return hmac.new(key.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
