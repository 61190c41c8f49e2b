"""Validate the result of a try before it is recorded.

A Python function reports its value as `result`. A facet declared in AFL may have returns of other
names. Then a map with exactly such names is split into these returns, and any other value becomes
the only return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowengine.authoring import event_facet_named
from flowengine.errors import DoesNotFit, ValueRefused
from flowengine.evaluator.triggers import Failed
from flowengine.program.nodes import Json
from flowengine.program.plan import FacetPlan
from flowengine.program.types import type_misfit
from flowengine.program.validator import Checks
from flowengine.store import codec

OF_PYTHON = "result"
_UNTYPED = "Json"


def check_result(
    facet: str, result: Mapping[str, Json], limit: int, depth: int = codec.MAX_DEPTH
) -> None:
    """Raise ValueRefused if a value cannot be stored."""
    codec.check_names(f"what {facet} returned", result)
    for name, value in result.items():
        codec.check_value(f"{name!r} returned by {facet}", value, limit, depth)


def check_types(facet: FacetPlan, result: Mapping[str, Json], checks: Checks) -> None:
    """Raise DoesNotFit if a value is not of the type that the facet declares.

    The annotation of a Python function has validated its value already. It may have changed since
    the program was traced: a run outlives a deploy.
    """
    returns = facet.returns
    if len(returns) == 1 and returns[0].name == OF_PYTHON:
        code = event_facet_named(facet.name)
        if code is not None and code.definition.signature.result.type != _UNTYPED:
            return
    problems = [
        f"{field.name!r}: {why}"
        for field in returns
        if field.type != _UNTYPED
        and field.name in result
        and (why := type_misfit(field, result[field.name], facet.schemas, checks))
    ]
    if problems:
        raise DoesNotFit(facet.name, problems)


def refused_result(problem: ValueRefused | DoesNotFit) -> Failed:
    """A result that cannot be stored is a failure of the try that made it."""
    return Failed({"type": type(problem).__name__, "message": str(problem)}, retry=False)


def named_result(
    facet: str, result: Mapping[str, Json], declared: Sequence[str]
) -> Mapping[str, Json]:
    """Return the result by the names the facet declares; raises DoesNotFit."""
    if not declared or OF_PYTHON in declared:
        return result
    value = result[OF_PYTHON]
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
