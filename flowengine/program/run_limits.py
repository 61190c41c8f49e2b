"""The limit of a workflow's runs: a mixin of its signature, ``with flowengine.Runs(count = 2)``.

Runs that find no room are queued, and begin in the order of their starts.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowengine.program.expressions import Constants, EvaluationError, evaluate
from flowengine.program.nodes import Mixin
from flowengine.program.standard import NAMESPACE

MIXIN = f"{NAMESPACE}.Runs"
MOST = 1_000  #: places of a workflow


def run_limit(mixins: Iterable[Mixin]) -> int | str | None:
    """Return how many runs of a workflow may be open at a time, or the problem with it."""
    mixin = next((each for each in mixins if each.target == MIXIN), None)
    if mixin is None:
        return None
    if [argument.name for argument in mixin.arguments] != ["count"]:
        return f"{MIXIN} has one parameter, 'count'"
    try:
        count = evaluate(mixin.arguments[0].value, Constants())
    except EvaluationError:
        count = None
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
        return f"'count' of {MIXIN} must be a constant whole number from 1 to {MOST:,}"
    return count
