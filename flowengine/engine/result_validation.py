"""Validate the result of a try, or an answer from outside, before it is recorded.

A Python function reports its value as `result`. A facet declared in AFL may have returns of other
names. Then a map with exactly such names is split into these returns, and any other value becomes
the only return.

The annotation of a function validates the value that the function returns. A value that somebody
else gives, a poller or the caller of `continue_step`, is validated by the types and schemas that
the program has stored for the facet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowengine.authoring import event_facet_named
from flowengine.errors import DoesNotFit, ValueRefused
from flowengine.evaluator.events import RETRY_AFTER
from flowengine.evaluator.records import Error, Step
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.triggers import Failed
from flowengine.program.limits import Limits
from flowengine.program.nodes import Json
from flowengine.program.option_checks import is_number
from flowengine.program.plan import FacetPlan
from flowengine.program.types import misfits, null_misfit, type_misfit
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


def check_types(
    facet: FacetPlan, result: Mapping[str, Json], checks: Checks, *, is_from_code: bool = False
) -> None:
    """Raise DoesNotFit if a value is not of the type that the facet declares.

    The annotation of a Python function has validated its value already. It may have changed since
    the program was traced: a run outlives a deploy.
    """
    if is_from_code:
        problems = [] if _is_annotated(facet) else _type_misfits(facet, result, checks)
    else:
        codec.check_names(f"what {facet.name} returned", result)
        problems = answer_problems(facet, result, checks)
    if problems:
        raise DoesNotFit(facet.name, problems)


def _is_annotated(facet: FacetPlan) -> bool:
    returns = facet.returns
    if len(returns) != 1 or returns[0].name != OF_PYTHON:
        return False
    code = event_facet_named(facet.name)
    return code is not None and code.definition.signature.result.type != _UNTYPED


def _type_misfits(facet: FacetPlan, result: Mapping[str, Json], checks: Checks) -> list[str]:
    return [
        f"{field.name!r}: {why}"
        for field in facet.returns
        if field.type != _UNTYPED
        and field.name in result
        and (why := type_misfit(field, result[field.name], facet.schemas, checks))
    ]


def answer_problems(facet: FacetPlan, answer: Mapping[str, Json], checks: Checks) -> list[str]:
    """Return every problem of an answer from outside: unknown names, misfits of type and schema.

    Of a facet that declares no returns any names are accepted: nobody reads them. Null fits every
    type of AFL, but not the annotation of a Python function: one that allows None has a schema.
    """
    declared = [field.name for field in facet.returns]
    names = ", ".join(declared)
    unknown = [name for name in answer if declared and name not in declared]
    problems = [f"{name!r} is unknown, {facet.name} returns {names}" for name in unknown]
    is_null = declared == [OF_PYTHON] and not problems and answer.get(OF_PYTHON) is None
    if is_null and (why := null_misfit(facet.returns[0], None)):
        problems.append(f"{OF_PYTHON!r}: {why}")
    return problems + misfits(facet.returns, answer, facet.schemas, checks)


def answer_by_name(subject: str, given: Any, declared: Sequence[str]) -> dict[str, Json]:
    """Return an answer as a map of names; a value that is no map is the only result.

    No answer for a Python function is the answer None. Raises ValueRefused if there is no only
    result.
    """
    if given is None or given == {}:
        return {OF_PYTHON: None} if declared == [OF_PYTHON] else {}
    if isinstance(given, Mapping):
        return dict(given)
    if len(declared) == 1:
        return {declared[0]: given}
    wanted = f"a map with the results {', '.join(declared)}" if declared else "left out"
    kind = type(given).__name__
    raise ValueRefused(f"the answer for {subject} must be {wanted}, not a value of type {kind}")


def checked_answer(
    facet: FacetPlan | None,
    step: Step,
    given: Any,
    value_limits: tuple[int, int],
    limits: Limits,
) -> tuple[dict[str, Json], str]:
    """Return an answer for a step by the names of its results, and why it does not fit them.

    The call of a durable function is in no program: its only result is `result`, which the
    annotation of its facet validates when the function reads it.

    Raises ValueRefused if it cannot be stored.
    """
    path, is_call = step.path, step.object_type == ObjectType.FUNCTION_CALL
    declared = [field.name for field in facet.returns] if facet else [OF_PYTHON] * is_call
    answer = answer_by_name(path, given, declared)
    codec.check_names(f"the answer for {path}", answer)
    for name, value in answer.items():
        codec.check_value(f"{name!r} for {path}", value, *value_limits)
    checks = Checks(limits.max_schema_checks)
    wrong = answer_problems(facet, answer, checks) if facet is not None else []
    if facet is None and is_call and answer.keys() != {OF_PYTHON}:
        wrong = [f"its only result has the name {OF_PYTHON!r}"]
    return answer, f"the answer for {path} does not fit: {'; '.join(wrong)}" if wrong else ""


def stated_error(error: Any) -> Error:
    """Return the error of a failed try as a map with a type and a message, which readers expect."""
    if not isinstance(error, dict):
        return {"type": "Error", "message": str(error)}
    if RETRY_AFTER in error and not is_number(error[RETRY_AFTER]):  # of a poller
        error = {name: value for name, value in error.items() if name != RETRY_AFTER}
    stated: Error = error
    if isinstance(stated.get("type"), str) and isinstance(stated.get("message"), str):
        return stated
    kind, message = stated.get("type") or "Error", stated.get("message", "")
    return {**stated, "type": str(kind), "message": str(message)}


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
