"""Tokens: where a script ends, and the values of strings, scripts and documentation comments.

The Python code in ``script { … }`` may have braces in strings and comments, so a lexer pattern
cannot find the closing brace. `mark_scripts` runs before the parser and replaces both braces by
Unicode noncharacters, which preserves every line and column.
"""

from __future__ import annotations

import re
import textwrap

from flowengine.program.nodes import Json

OPEN, CLOSE = "\ufdd0", "\ufdd1"  #: noncharacters, which valid text never contains

# Unclosed strings and comments match up to the end of the text: otherwise the pattern would be
# retried at every later quote and comment, in quadratic time.
_BEFORE = re.compile(
    r"""
    "[^"\\]*(?:\\.[^"\\]*)*\\?(?:"|\Z)                   # not a script: in a string
    | /\*.*?(?:\*/|\Z) | //[^\n]*                        # or in a comment
    | (?P<script>
        (?:\) | (?<![\w.])(?:andThen | as\s+\w+))        # tokens allowed before a script
        (?>\s | //[^\n]* | /\*(?>.*?(?:\*/|\Z)))*+
        (?<!\w)script(?:\s+[A-Za-z]\w*)?\s*\{
      )
    """,
    re.VERBOSE | re.DOTALL,
)
_INSIDE = re.compile(
    r"""
    \"{3}(?:[^\\]|\\.)*?(?:\"{3}|\\?\Z) | '{3}(?:[^\\]|\\.)*?(?:'{3}|\\?\Z)
    | "(?:[^"\\\n]|\\.)*+"? | '(?:[^'\\\n]|\\.)*+'?
    | \#[^\n]*
    | (?P<brace>[{}])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL
)
_LETTERS = dict(zip("ntrabfv\"'\\", "\n\t\r\a\b\f\v\"'\\", strict=True))
_TAG = re.compile(r"@(param|returns?)\s+(\w+)\s+(.*)")


def mark_scripts(text: str) -> str:
    """Replace the outer braces of each script; an unclosed script stays unchanged."""
    parts: list[str] = []
    done = at = 0
    while match := _BEFORE.search(text, at):
        at = match.end()
        if match["script"] is None:
            continue
        end = _closing(text, at)
        if end is None:
            break  # the parser reports the unclosed brace
        parts += [text[done : at - 1], OPEN, text[at:end], CLOSE]
        done = at = end + 1
    return "".join((*parts, text[done:]))


def _closing(text: str, at: int) -> int | None:
    depth = 1
    for match in _INSIDE.finditer(text, at):
        if brace := match["brace"]:
            depth += 1 if brace == "{" else -1
        if depth == 0:
            return match.start()
    return None


def script_code(braced: str) -> str:
    """Return the dedented Python between the braces of a script."""
    first, _, rest = braced[1:-1].partition("\n")
    code = f"{first.strip()}\n{textwrap.dedent(rest)}" if first.strip() else textwrap.dedent(rest)
    return code.strip("\n").rstrip()


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
