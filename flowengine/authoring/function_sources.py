"""The digest of the source of a durable function, by which a program tells that the code changed.

It is of the text of the function alone, without comments and blank lines, so that all versions of
Python have the same one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from hashlib import blake2b
from typing import Any


def source_digest(fn: Callable[..., Any]) -> str:
    """Return a digest of the source; empty if there is none, as in an interactive session."""
    try:
        lines, _ = inspect.getsourcelines(inspect.unwrap(fn))
    except (OSError, TypeError):
        return ""
    kept = [line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return blake2b("\n".join(kept).encode(), digest_size=8).hexdigest()
