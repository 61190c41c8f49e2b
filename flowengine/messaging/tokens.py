"""Tokens: the right to settle a message.

What one call handed out has one token; the second message of a batch has it with `-2` behind it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_TOKEN = re.compile(r"(res_[0-9a-f]{16})(?:-([2-9]|[1-9][0-9]{1,2}))?")


def new_token() -> str:
    return f"res_{random.getrandbits(64):016x}"


def suffix(place: int) -> str:
    """What the token of this place in a batch has behind that of the batch."""
    return "" if place == 1 else f"-{place}"


def known(token: str) -> str:
    """What cannot be a token is none, and may have spaces of its own."""
    return token if _TOKEN.fullmatch(token) else "?"


def runs(tokens: Sequence[str]) -> str:
    """Tokens as `ack.lua` wants them: those of one batch in their order are named together."""
    if len(tokens) == 1:
        return known(tokens[0])
    told: list[str] = []
    batch, first, last, following = "", 0, 0, ""
    for token in tokens:
        if token == following:
            last += 1
        else:
            if batch:
                told.append(f"{batch} {first} {last} ")
            found = _TOKEN.fullmatch(token)
            batch, first = (found[1], int(found[2] or 1)) if found else ("?", 1)
            last = first
        following = f"{batch}-{last + 1}"
    return "".join([*told, f"{batch} {first} {last} "])
