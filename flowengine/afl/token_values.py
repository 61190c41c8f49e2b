"""Values of tokens: strings, scripts, documentation comments."""

from __future__ import annotations

import re
import textwrap

from flowengine.program.nodes import Json

_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL
)
_LETTERS = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    '"': '"',
    "'": "'",
    "\\": "\\",
}
_TAG = re.compile(r"@(param|returns?)\s+(\w+)\s+(.*)")


def string_value(token: str) -> str:
    """Return the text of a string token; raises ValueError for an invalid character.

    An unknown escape stays unchanged, as in AFL: ``"\\d+"`` is a pattern.
    """
    text = _ESCAPE.sub(_unescape, token[1:-1])
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        # Two escapes may be a surrogate pair, as in JSON.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16")
    return text


def _unescape(match: re.Match[str]) -> str:
    escape = match[0]
    kind, digits = escape[1], escape[2:]
    if kind in _LETTERS:
        return _LETTERS[kind]
    if kind.isdigit() and kind < "8":
        return chr(int(escape[1:], 8))
    if kind in "xuU" and digits:
        return chr(int(digits, 16))
    return escape


def script_code(braced: str) -> str:
    """Return the dedented Python between the braces of a script."""
    first, _, rest = braced[1:-1].partition("\n")
    code = f"{first.strip()}\n{textwrap.dedent(rest)}" if first.strip() else textwrap.dedent(rest)
    return code.strip("\n").rstrip()


def documentation(comment: str) -> Json:
    """Parse a ``/** … */`` comment into text and tags."""
    text: list[str] = []
    tagged: dict[str, list[Json]] = {"params": [], "returns": []}
    for line in comment[3:-2].splitlines():
        line = line.strip().removeprefix("*").strip()
        if tag := _TAG.match(line):
            into = "params" if tag[1] == "param" else "returns"
            tagged[into].append({"name": tag[2], "description": tag[3].strip()})
        else:
            text.append(line)
    parts = {"description": "\n".join(text).strip(), **tagged}
    return {name: part for name, part in parts.items() if part}
