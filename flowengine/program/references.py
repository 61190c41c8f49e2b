"""References of a JSON Schema to its own parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def resolved(root: Mapping[str, Any], reference: str) -> Any:
    """Return the part of a schema at `#` or `#/a/b`; None if there is none, or it is elsewhere."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isascii() and name.isdigit():
            found = found[int(name)] if len(name) < 9 and int(name) < len(found) else None
        else:
            return None
    return found
