"""Lua scripts: each operation is one, and Redis runs one at a time.

So nobody ever sees half an operation, and a connection that breaks loses an answer, never a
message. A script says in its first lines which keys it wants and which parts it shares with
others; what it wants is put before it as local names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from flowengine.messaging.models import CoordinatorConfig

_FOLDER = files("flowengine.messaging") / "scripts"


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, with the names of the keys it wants in their order."""

    name: str
    keys: tuple[str, ...]
    text: str
    sha: str

    @classmethod
    def load(cls, name: str) -> Script:
        body = (_FOLDER / f"{name}.lua").read_text()
        asked = dict(_asked_for(body))
        keys = tuple(asked.get("keys", "").split())
        parts = asked.get("uses", "").split()
        bodies = [(_FOLDER / "parts" / f"{part}.lua").read_text() for part in parts] + [body]
        # Every line is run each time, so a script gets the defaults it asks for and no others.
        used = {name: value for name, value in _DEFAULTS.items() if f"'{name}'" in "".join(bodies)}
        text = "\n".join(
            [
                *(f"local {key.upper()} = KEYS[{place}]" for place, key in enumerate(keys, 1)),
                f"local DEFAULTS = {_lua_table(used)}",
                *bodies,
            ]
        )
        return cls(name, keys, text, hashlib.sha1(text.encode()).hexdigest())


_DEFAULTS: Mapping[str, float] = CoordinatorConfig().model_dump()


def _asked_for(body: str) -> list[tuple[str, str]]:
    lines = [line[3:] for line in body.splitlines() if line.startswith("--!")]
    return [(name.strip(), value) for name, _, value in (line.partition(":") for line in lines)]


def _lua_table(values: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name} = {value}" for name, value in values.items()) + "}"
