"""Files and directories that only their owner may read: they hold inputs, results and errors."""

from __future__ import annotations

import os
from pathlib import Path

_DIRECTORY, _FILE = 0o700, 0o600


def make_private_directory(path: Path) -> None:
    """Create a directory and its missing parents; the modes of existing ones are not changed."""
    for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
        missing.mkdir(mode=_DIRECTORY, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """The `opener` of `open`: a file that it creates is private."""
    return os.open(path, flags, _FILE)
