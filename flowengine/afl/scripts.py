"""Find where the Python in ``script { … }`` ends.

Braces of Python may stand in its strings and comments, so no pattern of a lexer finds the
one that closes the script. It is looked for here, before the text is read, and both braces
are replaced by characters that are no text: every place keeps its line and column.
"""

from __future__ import annotations

import re

OPEN, CLOSE = "\ufdd0", "\ufdd1"  #: noncharacters: Unicode promises that no text has them

# What is not closed is matched to its end all the same: a pattern that failed there would be
# tried again at every quote and every comment behind it.
_BEFORE = re.compile(
    r"""
    "[^"\\]*(?:\\.[^"\\]*)*\\?(?:"|\Z)                   # what looks like a script in a string
    | /\*.*?(?:\*/|\Z) | //[^\n]*                        # or in a comment is none
    | (?P<script>
        (?:\) | (?<![\w.])(?:andThen | as\s+\w+))        # what may stand before a script
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


def marked(text: str) -> str:
    """The text with the outer braces of its scripts replaced; one without end stays as it is."""
    parts: list[str] = []
    done = at = 0
    while found := _BEFORE.search(text, at):
        at = found.end()
        if found["script"] is None:
            continue
        end = _closing(text, at)
        if end is None:
            break  # the reader tells that a brace is not closed
        parts += [text[done : at - 1], OPEN, text[at:end], CLOSE]
        done = at = end + 1
    return "".join((*parts, text[done:]))


def _closing(text: str, at: int) -> int | None:
    depth = 1
    for found in _INSIDE.finditer(text, at):
        if brace := found["brace"]:
            depth += 1 if brace == "{" else -1
        if depth == 0:
            return found.start()
    return None
