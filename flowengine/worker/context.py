"""What a facet may ask about itself while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from flowengine.errors import FlowengineError
from flowengine.evaluator import TaskDefinition


class NotInAStep(FlowengineError):
    """There is no current step: the code is not being run as a step of a run."""

    def __str__(self) -> str:
        return "current_step() has an answer only inside an event facet that a worker runs"


@dataclass(frozen=True)
class StepContext:
    """The step that is being run."""

    run_id: str
    path: str  #: e.g. ``word_count.foreach[3].fetch``
    facet: str
    try_number: int
    #: The same for every try of this step: hand it to a service that takes such keys, and a
    #: second try cannot do the same thing twice.
    idempotency_key: str
    _beat: Callable[[], bool]

    def heartbeat(self) -> bool:
        """Show that work goes on; the facet's timeout starts anew.

        False: the step was taken away (timed out, answered by somebody else), and whatever
        this try returns will be refused. Stop.
        """
        return self._beat()


_current: ContextVar[StepContext] = ContextVar("flowengine_step")


def current_step() -> StepContext:
    """Return the step that this code is being run for."""
    try:
        return _current.get()
    except LookupError:
        raise NotInAStep from None


@contextmanager
def running(task: TaskDefinition, beat: Callable[[], bool]) -> Iterator[StepContext]:
    """Make a task's step the current one."""
    context = StepContext(
        run_id=task.workflow_id,
        path=task.step_path,
        facet=task.name,
        try_number=task.try_number,
        idempotency_key=task.step_id,
        _beat=beat,
    )
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
