"""The program form of a durable function: an event facet whose name has the version.

``@workflow(version=2)`` on ``async def research`` in the module ``shop`` declares the event facet
``shop.research@2`` and the workflow ``shop.research``, whose body calls it. The tries of that event
are the activations of the function. Their tasks have the name of the facet, so only a worker with
this version of the code claims them, and both versions can be deployed side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DIVERGENCE_POLICIES = ("wait", "fail")
LARGEST_VERSION = 1_000_000
_MARK = "@"  # no name of Python has it; AFL and documents write it as here


@dataclass(frozen=True, slots=True)
class FunctionOptions:
    """The options of an event facet that is a durable function."""

    version: int = 1
    #: Of the source, to see whether the code has changed. It decides nothing.
    source_digest: str = ""
    #: For code that does not fit the record: "wait" for code that fits, or "fail".
    on_divergence: str = "wait"


def function_facet(name: str, version: int) -> str:
    """Return the name of the event facet of a function."""
    return f"{name}{_MARK}{version}"


def function_of(facet: str) -> tuple[str, int] | None:
    """Return the name and the version of a function by the name of its event facet."""
    name, mark, version = facet.rpartition(_MARK)
    if not mark or not version.isascii() or not version.isdigit():
        return None
    return name, int(version)


def without_version(facet: str) -> str:
    """Return the name of a facet as its author knows it."""
    found = function_of(facet)
    return facet if found is None else found[0]


def function_problems(options: FunctionOptions) -> Iterator[str]:
    """Return every problem of the options."""
    version: Any = options.version
    is_whole = isinstance(version, int) and not isinstance(version, bool)
    if not is_whole or not 1 <= version <= LARGEST_VERSION:
        yield f"version={version!r} is not a whole number from 1 to {LARGEST_VERSION:,}"
    if options.on_divergence not in DIVERGENCE_POLICIES:
        yield f"on_divergence={options.on_divergence!r} is neither 'wait' nor 'fail'"
    if not isinstance(options.source_digest, str):
        yield f"source_digest={options.source_digest!r} is not text"
