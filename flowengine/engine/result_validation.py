"""Validation of results: whether they can be stored, and under which names.

A Python function reports its value as `result`. A facet declared in AFL may have returns of other
names. Then a map with exactly such names is split into these returns, and any other value becomes
the only return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowengine.errors import DoesNotFit, ValueRefused
from flowengine.evaluator.triggers import Failed
from flowengine.program.nodes import Json
from flowengine.store import codec

_OF_PYTHON = "result"


def check(facet: str, result: Mapping[str, Json], limit: int) -> None:
    """Raise ValueRefused if a value cannot be stored."""
    codec.check_names(f"what {facet} returned", result)
    for name, value in result.items():
        codec.check_value(f"{name!r} returned by {facet}", value, limit)


def refused(problem: ValueRefused | DoesNotFit) -> Failed:
    """A result that cannot be stored is a failure of the try that made it."""
    return Failed({"type": type(problem).__name__, "message": str(problem)}, retry=False)


def wants_names(result: Mapping[str, Json]) -> bool:
    """Whether this is the report of a Python function, which may need declared names."""
    return result.keys() == {_OF_PYTHON}


def named(facet: str, result: Mapping[str, Json], declared: Sequence[str]) -> Mapping[str, Json]:
    """Return the result by the names the facet declares; raises DoesNotFit."""
    if not declared or _OF_PYTHON in declared:
        return result
    value = result[_OF_PYTHON]
    is_map = isinstance(value, dict) and bool(value)
    if is_map and value.keys() <= set(declared):
        return dict(value)
    if len(declared) == 1:
        return {declared[0]: value}
    wanted = f"it declares the returns {', '.join(declared)}, so return a map with these names"
    if is_map:
        foreign = ", ".join(repr(name) for name in value if name not in declared)
        raise DoesNotFit(facet, [f"{wanted}; {foreign} is not among them"])
    raise DoesNotFit(facet, [f"{wanted}, and not {type(value).__name__}"])
