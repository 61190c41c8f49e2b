"""Signed links: whoever holds one may give one answer to one run until it expires.

A link names the run, the answer, the person it was sent to, its expiry and perhaps the value; an
HMAC with SHA-256 signs all of it. Nothing is stored: the keys of the setting `link_keys` verify it.
It also has the number of the wait that it answers. A mailbox takes one answer for each wait, so a
link that is used twice is refused like any second answer, also when the run waits once more.
"""

from __future__ import annotations

import binascii
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Any

from flowengine.errors import LinkRefused

PATH = "/workflows/answer/"  #: of the page, below the setting `link_url`
_MAX_LENGTH = 8_000  # characters: longer addresses are cut by proxies and mail programs
_VERSION = 2


@dataclass(frozen=True, slots=True)
class LinkedAnswer:
    """The contents of a link."""

    run_id: str
    name: str
    actor: str
    expires: int  #: milliseconds since the epoch
    has_value: bool  #: the link holds the answer itself: "yes" and "no" are two links
    value: Any = None
    wait: int = 0  #: the number of the wait, among those of the run for this name


class AnswerLinks:
    """The keys of this process: the first one signs, all of them verify."""

    def __init__(self, keys: str = "", url: str = "") -> None:
        self._keys = [key.strip().encode() for key in keys.split(",") if key.strip()]
        self._url = url.rstrip("/")

    def sign(self, answer: LinkedAnswer) -> str:
        """Return the link; without the setting `link_url` only its token."""
        if not self._keys:
            raise LinkRefused("no key signs links: set FLOWENGINE_LINK_KEYS in all processes")
        value = [answer.value] if answer.has_value else []
        parts = [_VERSION, answer.run_id, answer.name, answer.actor, answer.expires, value]
        parts.append(answer.wait)
        body = _text(json.dumps(parts, separators=(",", ":"), allow_nan=False).encode())
        link = f"{body}.{_text(_digest(self._keys[0], body))}"
        link = f"{self._url}{PATH}{link}" if self._url else link
        if len(link) > _MAX_LENGTH:
            raise LinkRefused(
                f"it would have {len(link):,} characters, {_MAX_LENGTH:,} are allowed: leave the "
                "value out, so that the page asks for it"
            )
        return link

    def read(self, link: str, now: int) -> LinkedAnswer:
        """Return the contents of a link or its token; raise LinkRefused."""
        body, _, signature = link.rpartition("/")[2].partition(".")
        given = _bytes(signature)
        if not any(hmac.compare_digest(_digest(key, body), given) for key in self._keys):
            raise LinkRefused("its signature is not of a key of this installation, or it was cut")
        version, *parts = json.loads(_bytes(body))
        if version != _VERSION:
            raise LinkRefused("another version of flowengine has made it: ask for a new one")
        run_id, name, actor, expires, value, wait = parts
        if now >= expires:
            raise LinkRefused("it has expired: ask for a new one")
        return LinkedAnswer(
            run_id, name, actor, expires, bool(value), value[0] if value else None, wait
        )


def _digest(key: bytes, body: str) -> bytes:
    return hmac.digest(key, b"flowengine answer " + body.encode(errors="replace"), "sha256")


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    try:
        return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""
