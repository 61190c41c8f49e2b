"""Lua scripts: each operation is one script, so it is atomic.

A lost connection can lose a response, never half an operation. The first lines of a script name the
keys and the shared parts it needs; `Script.load` puts them before the script as local names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeAlias

from flowengine.messaging.models import CoordinatorConfig

Argument: TypeAlias = str | bytes | int | float

_MAX_SECONDS = 1_000_000_000  #: Lua's numbers have no exact microseconds beyond 9 times that
_FOLDER = files("flowengine.messaging") / "scripts"
_DEFAULTS: Mapping[str, float] = CoordinatorConfig().model_dump()


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the names of its keys, in order."""

    name: str
    keys: tuple[str, ...]
    text: str
    sha: str

    @classmethod
    def load(cls, name: str) -> Script:
        body = (_FOLDER / f"{name}.lua").read_text()
        directives = dict(_directives(body))
        keys = tuple(directives.get("keys", "").split())
        parts = directives.get("uses", "").split()
        bodies = [(_FOLDER / "parts" / f"{part}.lua").read_text() for part in parts] + [body]
        # Redis runs every line at each call, so a script gets only the defaults it uses.
        used = {name: value for name, value in _DEFAULTS.items() if f"'{name}'" in "".join(bodies)}
        defaults = ", ".join(f"{name} = {value}" for name, value in used.items())
        key_lines = [f"local {key.upper()} = KEYS[{place}]" for place, key in enumerate(keys, 1)]
        text = "\n".join([*key_lines, f"local DEFAULTS = {{{defaults}}}", *bodies])
        return cls(name, keys, text, hashlib.sha1(text.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class Call:
    """Run a script. Strings in the response are bytes."""

    script: Script
    keys: tuple[bytes, ...]
    arguments: tuple[Argument, ...] = ()


def microseconds(seconds: float, name: str = "a time") -> int:
    """Times in scripts are microseconds; `name` names the argument in the error."""
    # A NaN is in no range.
    if not isinstance(seconds, int | float) or not 0 <= seconds <= _MAX_SECONDS:
        raise ValueError(
            f"{name} must be a number of seconds from 0 to {_MAX_SECONDS:,}, not {seconds!r}"
        )
    return round(seconds * 1_000_000)


def _directives(body: str) -> list[tuple[str, str]]:
    lines = [line[3:] for line in body.splitlines() if line.startswith("--!")]
    return [(name.strip(), value) for name, _, value in (line.partition(":") for line in lines)]
