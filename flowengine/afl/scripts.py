"""Find the end of the Python code in ``script { … }``.

Python may have braces in strings and comments, so a lexer pattern cannot find the closing
brace of a script. This pass runs before the parser and replaces both braces by Unicode
noncharacters, which preserves every line and column.
"""

from __future__ import annotations

import re

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
