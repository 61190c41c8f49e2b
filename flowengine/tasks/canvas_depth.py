"""How deep the parts of a canvas are nested: found without recursion, before anything reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.utils.functional import maybe_list

from flowengine.errors import Problem

#: Each level takes several frames of the stack here, in Celery and in the making of the program.
_MOST_LEVELS = 100


def depth_problem(signature: Mapping[str, Any]) -> Problem | None:
    """Return the problem of a canvas that is nested too deeply to be read."""
    rest: list[tuple[Any, int]] = [(signature, 1)]
    while rest:
        given, level = rest.pop()
        if not isinstance(given, dict):
            continue
        if level > _MOST_LEVELS:
            cure = "write a workflow, or put its parts side by side into one chain or group"
            what = f"its parts are nested more than {_MOST_LEVELS} deep: {cure}"
            return Problem("canvas", what)
        options = given.get("options") or {}
        inner = given.get("kwargs") or {} if given.get("subtask_type") else {}
        found = [options.get("link"), options.get("link_error")]
        found += [inner.get(name) for name in ("tasks", "header", "body")]
        rest += [(each, level + 1) for parts in found for each in maybe_list(parts) or ()]
    return None
