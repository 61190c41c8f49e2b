"""Facets that return the process that ran them, for tests with several processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from flowengine import event_facet, foreach, workflow


@event_facet
def slowly(n: int) -> int:
    time.sleep(0.1)
    return os.getpid()


@event_facet(timeout=600)
def hold(n: int) -> int:
    """Say that it has begun, then wait until a file allows it to end."""
    directory = Path(os.environ["SHARED_DIRECTORY"])
    (directory / f"begun-{n}-{os.getpid()}").touch()
    while not (directory / "go").exists():
        time.sleep(0.01)
    return os.getpid()


@workflow
def many(count: list[int]) -> list[int]:
    return foreach(count, lambda n: slowly(n))


@workflow
def held(n: int) -> int:
    return hold(n)


def main() -> None:
    """Work until the standard input is closed."""
    from flowengine import default_engine

    default_engine()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
