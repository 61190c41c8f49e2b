"""The answers for which the steps of a program wait, as far as the program says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flowengine.program.expressions import Constants, EvaluationError, evaluate
from flowengine.program.nodes import Expression, Json
from flowengine.program.plan import Plan, StatementKind, StatementPlan
from flowengine.program.standard import WAIT_FOR
from flowengine.program.suggestions import Suggestions
from flowengine.program.validator import Checks, schema_misfit

_MAX_NAMED = 10  # names in a message


@dataclass(frozen=True, slots=True)
class Question:
    name: str | None  #: None: a run computes it
    schema: Mapping[str, Json] | None  #: None: every value may fit


def questions(plan: Plan) -> Iterator[Question]:
    """Return for which answers the steps of a program wait."""
    for statement in plan.callers.get(WAIT_FOR, ()):
        name, schema = _constant(statement, "name"), _constant(statement, "schema")
        yield Question(
            name if isinstance(name, str) else None, schema if isinstance(schema, Mapping) else None
        )


def early_misfit(plan: Plan, name: str, value: Json, checks: Checks) -> str:
    """Return why no step of a program will take an answer; empty if one may."""
    every = list(questions(plan))
    asked = [question for question in every if question.name in (name, None)]
    if not asked:
        return _unknown(name, sorted({question.name for question in every if question.name}))
    if any(question.schema is None for question in asked):
        return ""
    first = ""
    for schema in (question.schema for question in asked if question.schema is not None):
        problem = schema_misfit(schema, value, checks)
        if not problem:
            return ""
        first = first or problem
    return first


def _unknown(name: str, known: list[str]) -> str:
    if not known:
        return f"no step of its program waits for {name!r}, or for any other answer"
    named = ", ".join(map(repr, known[:_MAX_NAMED]))
    more = f" and {len(known) - _MAX_NAMED:,} more" if len(known) > _MAX_NAMED else ""
    hint = Suggestions().near(name, known)
    return f"no step of its program waits for {name!r}: it waits for {named}{more}{hint}"


def _constant(statement: StatementPlan, parameter: str) -> Json:
    """Return a constant argument; None if a run computes it, or the caller of a mixin gives it."""
    given: Mapping[str, Expression] = dict(statement.arguments)
    if statement.kind is StatementKind.MIXIN or parameter not in given:
        return None
    try:
        return evaluate(given[parameter], Constants())
    except EvaluationError:
        return None
