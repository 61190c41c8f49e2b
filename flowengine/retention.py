"""How long ended runs are kept: ages as text, and one age for each final state."""

from __future__ import annotations

import re

#: The states that a rule may name, the final ones of a run.
STATES = ("CANCELLED", "COMPLETED", "FAILED")
EXPECTED = "ages by state, as COMPLETED=30d,FAILED=90d: a number with s, m, h, d or w; or `never`"
#: Where nothing is set. Failed runs are kept longer: somebody may want to see or retry them.
DEFAULT = "COMPLETED=30d,CANCELLED=30d,FAILED=90d"
EXPECTED_AGE = "a number with a unit: 45s, 30m, 12h, 30d or 8w"
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def age_of(text: str) -> int:
    """Return an age in milliseconds; raise ValueError."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise ValueError(EXPECTED_AGE)
    return round(float(found[1]) * _UNITS[found[2]] * 1000)


def rules_of(text: str) -> dict[str, int]:
    """Return the ages in milliseconds by state; raise ValueError.

    An empty text has no rules, and neither has `never`, which a variable can hold.
    """
    rules: dict[str, int] = {}
    if text.strip().lower() == "never":
        return rules
    for part in filter(None, (part.strip() for part in text.split(","))):
        state, sign, age = part.partition("=")
        state = state.strip().upper()
        if not sign or state not in STATES or state in rules:
            raise ValueError(EXPECTED)
        try:
            rules[state] = age_of(age)
        except ValueError:
            raise ValueError(EXPECTED) from None
    return rules
