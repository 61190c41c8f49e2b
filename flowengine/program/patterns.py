"""Regular expressions of JSON Schemas, matched in linear time.

Python's `re` backtracks: `^(a+)+$` takes time exponential in the text. pydantic matches with Rust's
`regex`, in time proportional to text times pattern. It is a dependency already and the engine of
pydantic's own patterns, so a pattern of an annotation means the same in a program. Lookaround and
backreferences have no linear-time algorithm: a pattern with one is refused when it is loaded.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

LONGEST_PATTERN = 1_000  #: characters
LARGEST_PATTERN = 5_000  #: states, see `pattern_size`
_CLASS_STATES = 4  # of a class, as [a-z] or `.`
_UNICODE_STATES = 20  # of a class of Unicode, as \\w: thousands of ranges

_MAX_COMPILED = 32  # patterns that are kept; the largest has some megabytes

_COUNTED = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}")


def pattern_problem(text: str) -> str:
    """Return the reason why a pattern is refused; empty if it is accepted."""
    if len(text) > LONGEST_PATTERN:
        return f"has {len(text)} characters, and may have {LONGEST_PATTERN}"
    if (size := pattern_size(text)) > LARGEST_PATTERN:
        return (
            f"has about {size:,} states and may have {LARGEST_PATTERN:,}: repetitions count as if "
            "they were written out, and \\w and \\d as twenty characters; use smaller counts"
        )
    try:
        _compiled(text)
    except Exception as problem:  # pydantic_core.SchemaError
        return (
            f"cannot be matched in linear time: {_reason(problem)}; write it without lookaround "
            "and backreferences"
        )
    return ""


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern occurs in the text. Raises ValueError for a refused pattern."""
    if problem := pattern_problem(pattern):
        raise ValueError(f"the pattern {pattern[:40]!r} {problem}")
    return bool(_compiled(pattern).isinstance_python(text))


@lru_cache(maxsize=512)
def pattern_size(text: str) -> int:
    """Return about how many states a matcher has, with `x{1,50}` written as 50 times `x`."""
    sizes, last, at = [0], 0, 0
    while at < len(text):
        char, step = text[at], 1
        if counted := _COUNTED.match(text, at):
            low, _, high = counted.groups()
            last *= max(int(low), int(high or 0), 1)
            step = counted.end() - at
        elif char == "(":
            sizes[-1] += last
            sizes.append(0)
            last = 0
        elif char == ")" and len(sizes) > 1:
            last += sizes.pop()
        else:
            sizes[-1] += last
            last = _CLASS_STATES if char == "." else 1
            if char == "\\":
                step = 2
                last = _UNICODE_STATES if text[at + 1 : at + 2].isalpha() else 1
            elif char == "[":
                step = _class_length(text, at)
                is_wide = "\\" in text[at : at + step]
                last = _UNICODE_STATES if is_wide else _CLASS_STATES
        at += step
    return sum(sizes) + last


def _class_length(text: str, start: int) -> int:
    """Return the length of a character class, which may contain others."""
    depth, at = 0, start
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "[":
            depth += 1
        elif text[at] == "]" and at > start + 1:
            depth -= 1
            if depth <= 0:
                return at - start + 1
        at += 1
    return len(text) - start


@lru_cache(maxsize=_MAX_COMPILED)
def _compiled(text: str) -> Any:
    from pydantic_core import SchemaValidator, core_schema  # slow to import, needed by few programs

    return SchemaValidator(core_schema.str_schema(pattern=text, regex_engine="rust-regex"))


def _reason(problem: Exception) -> str:
    """Return the last line of pydantic's message that names the error."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("error:")]
    return (
        (named or lines or [type(problem).__name__])[-1]
        .removeprefix("error: ")
        .removeprefix("SchemaError: ")[:200]
    )
