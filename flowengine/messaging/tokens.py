"""Reservation tokens.

One receive has one token. In a batch, the first message has the token itself and the second has it
with the suffix `-2`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_TOKEN = re.compile(r"(res_[0-9a-f]{16})(?:-([2-9]|[1-9][0-9]{1,2}))?")


def new_token() -> str:
    return f"res_{random.getrandbits(64):016x}"


def suffix(place: int) -> str:
    """The suffix of the token at this place of a batch."""
    return "" if place == 1 else f"-{place}"


def sanitized(token: str) -> str:
    """The token, or `?` for a malformed one: its spaces would break the script's argument."""
    return token if _TOKEN.fullmatch(token) else "?"


def token_ranges(tokens: Sequence[str]) -> str:
    """The argument of `ack.lua`: consecutive tokens of one batch become one range."""
    if len(tokens) == 1:
        return sanitized(tokens[0])
    ranges: list[str] = []
    batch, first, last, following = "", 0, 0, ""
    for token in tokens:
        if token == following:
            last += 1
        else:
            if batch:
                ranges.append(f"{batch} {first} {last} ")
            match = _TOKEN.fullmatch(token)
            batch, first = (match[1], int(match[2] or 1)) if match else ("?", 1)
            last = first
        following = f"{batch}-{last + 1}"
    return "".join([*ranges, f"{batch} {first} {last} "])
