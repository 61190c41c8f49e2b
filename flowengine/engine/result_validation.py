"""What a facet returned: whether it can be stored, and under which names.

A Python function returns one value, and reports it as `result`. A facet that is declared in
AFL has returns of other names. So a value called `result` that the facet does not declare is
taken for what the facet does declare: a map of its names is taken apart, and any other value
is the only return there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowengine.errors import DoesNotFit, ValueRefused
from flowengine.evaluator.triggers import Failed
from flowengine.program.nodes import Json
from flowengine.store import codec

_OF_PYTHON = "result"


def check(facet: str, result: Mapping[str, Json], limit: int) -> None:
    """Raise ValueRefused for what cannot be stored."""
    codec.check_names(f"what {facet} returned", result)
    for name, value in result.items():
        codec.check_value(f"{name!r} returned by {facet}", value, limit)


def refused(problem: ValueRefused | DoesNotFit) -> Failed:
    """A result that cannot be stored is a failure of the try that made it."""
    return Failed({"type": type(problem).__name__, "message": str(problem)}, retry=False)


def wants_names(result: Mapping[str, Json]) -> bool:
    """Whether this is what a Python function reports."""
    return result.keys() == {_OF_PYTHON}


def named(facet: str, result: Mapping[str, Json], declared: Sequence[str]) -> Mapping[str, Json]:
    """The result by the names the facet declares; raises DoesNotFit."""
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
