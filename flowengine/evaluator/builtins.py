"""Built-in facets that the evaluator answers without a worker: the time and a new id.

Both are deterministic: they derive from the time of the evaluation and from the step's id, and
are recorded with the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from flowengine.evaluator.records import Step, derived_id
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program import standard
from flowengine.program.nodes import Json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _now(work: WorkingSet, step: Step) -> str:
    moment = _EPOCH + timedelta(milliseconds=work.now)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _uuid(work: WorkingSet, step: Step) -> str:
    # Marked as version 4, for readers that check; it is a digest, not a random number.
    return str(UUID(hex=derived_id(step.id, "uuid"), version=4))


ANSWERS: Mapping[str, Callable[[WorkingSet, Step], Json]] = {
    standard.NOW: _now,
    standard.UUID: _uuid,
}


def answer(work: WorkingSet, step: Step, facet: str) -> None:
    """Set the result of a step of a built-in facet."""
    if facet in ANSWERS:
        step.returns = {**step.returns, standard.RESULT: ANSWERS[facet](work, step)}
