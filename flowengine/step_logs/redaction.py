"""Redaction: secrets are masked in a line before it leaves the process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from flowengine.step_logs.threads import step_of_lines

HIDDEN = "**********"
_SHORTEST = 6  #: characters; to mask shorter texts would destroy lines that have nothing secret
_ADDRESS = 512  #: characters of an address up to its host
#: The password in an address: scheme://user:password@host.
_PASSWORD = re.compile(r"(\w://[^\s:/@]*):[^\s/@]+@")


class Redactor:
    """Masks the secrets of a process, and those that a try has been given."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: tuple[str, ...] = ()
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        # The longest first: a secret may be a part of another one.
        self._secrets = tuple(sorted({*self._secrets, *forms}, key=len, reverse=True))
        #: Characters at the end of a text that may be the beginning of a secret.
        self.overlap = max([_ADDRESS, *map(len, self._secrets)])

    def with_more(self) -> Redactor:
        """Return a redactor of the same secrets, to which others may be added."""
        return Redactor(self._secrets)

    def redacted(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        if "://" in text and "@" in text:
            text = _PASSWORD.sub(rf"\1:{HIDDEN}@", text)
        return text


def _forms(secret: str) -> Iterable[str]:
    """Return the forms of a secret in lines: its own lines, and as JSON or Python quote it."""
    for line in secret.splitlines():
        for form in (line.strip(), json.dumps(line)[1:-1], repr(line)[1:-1]):
            if len(form) >= _SHORTEST:
                yield form


def note_secret(value: Any) -> None:
    """Mask the texts of a decrypted secret in the log of the current try."""
    step = step_of_lines()
    log = None if step is None else step.log()
    if log is not None:
        log.add_secrets(_texts(value))


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [] if value is None or isinstance(value, bool) else [str(value)]
