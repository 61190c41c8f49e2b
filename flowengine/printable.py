"""Text of runs, programs and messages in a form that is safe to show.

A control character in an error or a name would move the cursor, recolour the terminal or begin a
line of its own in a log. It is shown as an escape sequence of Python instead: ESC as ``\\x1b``, a
newline as ``\\n``. The same for characters that reorder the text around them, and for lone
surrogates, which no terminal can encode.
"""

from __future__ import annotations

import re

_ALWAYS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ON_ONE_LINE = re.compile(f"[{_ALWAYS}\t\n]")
_ON_LINES = re.compile(f"[{_ALWAYS}]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PASSWORD = re.compile(r":(?!//).*@", re.DOTALL)
_SECRET = re.compile(r"([?&;][^=&]*(?:pass|pwd|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)


def is_storable(text: str) -> bool:
    """Whether a database stores the text: no NUL is in it, and no lone surrogate."""
    return "\0" not in text and (text.isascii() or not _SURROGATE.search(text))


def printable(text: str, *, lines: bool = False, limit: int | None = None) -> str:
    """Return the text on one line, or with `lines` on several, without control characters.

    With `limit`, a longer text (with `lines`: a longer line) is cut.
    """
    if lines:
        if limit is not None and len(text) > limit:
            text = "\n".join(clipped(line, limit) for line in text.split("\n"))
        return text if text.isprintable() else _ON_LINES.sub(_escaped, text)
    if limit is not None:
        text = clipped(text, limit)
    return text if text.isprintable() else _ON_ONE_LINE.sub(_escaped, text)


def clipped(text: str, limit: int) -> str:
    """Cut the middle of a text that is longer: the end of a sentence says what is wrong."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail]}…{text[-tail:]} ({len(text):,} characters)"


def names_of(names: object, limit: int = 500) -> str:
    """Return the names of inputs for a log line: without their values, and not too long."""
    if not isinstance(names, dict):
        return "none" if names is None else f"a {type(names).__name__}"
    return clipped(", ".join(map(repr, names)), limit) or "none"


def masked_url(url: str) -> str:
    """Return a URL without its password, whether before the host or in the query."""
    return _SECRET.sub(r"\1***", _PASSWORD.sub(":***@", url))


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]
