"""Text on the standard streams, without the library that draws: an error needs none."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

from flowengine.printable import printable
from flowengine.secret_keys import without_secrets

MAX_LINE = 2_000  #: characters of one line of an error or a traceback


def message(text: str) -> str:
    """Return the message of an error as it is written to stderr."""
    return printable(text, lines=True, limit=MAX_LINE)


def json_of(shown: Any, indent: int | None = 2) -> str:
    """Return values of runs as JSON, with asterisks in the place of secrets."""
    return json.dumps(without_secrets(shown), indent=indent)


def accept_any_text() -> None:
    """Let a terminal that cannot encode a character show its escape sequence instead."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        with suppress(ValueError, OSError):  # a test's stream, or one that is closed
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
