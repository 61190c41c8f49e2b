"""The standard steps: `now`, `uuid`, and `.start()` of another workflow in a traced body.

A body is traced once for all runs, so a clock read there would give all of them the same
time. `now` and `uuid` are steps that the engine completes without a worker.

A step that starts a child run completes when that run is started. If the body calls `.result()`
of the handle, the step completes with the child run instead, and its dependents wait for it.
"""

from __future__ import annotations

import dataclasses
import datetime
import uuid as python_uuid
from typing import Any, cast

from flowengine.authoring.current_function import is_in_function
from flowengine.authoring.definitions import Definition
from flowengine.authoring.launcher_slot import OnCancel
from flowengine.authoring.locations import location_of, user_location
from flowengine.authoring.order import Order, after_nodes
from flowengine.authoring.scopes import Scope, current_scope
from flowengine.authoring.symbols import Symbol, info_of
from flowengine.errors import AuthoringError
from flowengine.program import nodes
from flowengine.program.standard import AFTER, CHILD, NOW, RESULT, RUN, STANDARD, UUID


def now(*, after: object = None) -> datetime.datetime:
    """Return the time at which the run reaches this step, in UTC.

    Without `after` that is near the start of its body; the step waits for the value `after`. In a
    durable function it is the recorded time of the end that was heard last, and no step.
    """
    scope = current_scope()
    if scope is not None:
        waits = {} if after is None else {AFTER: after}
        return cast(datetime.datetime, scope.call_standard(NOW, waits, datetime.datetime))
    if isinstance(after, Symbol):
        raise info_of(after).visibility.escape_error(info_of(after).label)
    if is_in_function():
        from flowengine.authoring.functions import derived_values

        return derived_values.now()
    # Outside a run: a unit test calls the body as plain Python.
    return datetime.datetime.now(datetime.UTC)  # noqa: TID251


def uuid() -> python_uuid.UUID:
    """Return a random id, recorded by the run."""
    scope = current_scope()
    if scope is not None:
        return cast(python_uuid.UUID, scope.call_standard(UUID, {}, python_uuid.UUID))
    if is_in_function():
        from flowengine.authoring.functions import derived_values

        return derived_values.uuid()
    return python_uuid.uuid4()  # noqa: TID251


@dataclasses.dataclass(frozen=True)
class WorkflowCall:
    """Returned by an event facet: a workflow, chosen at run time, whose result is its own."""

    program: nodes.Program | None  #: None: the program of the facet's run
    workflow: str
    inputs: dict[str, nodes.Json]
    waits: bool = True
    on_cancel: OnCancel = "cancel"  #: when the facet's run is cancelled


#: Members of a handle that read a run, which does not exist while its parent is traced.
_READS = frozenset(
    {
        *("state", "info", "steps", "outputs", "ainfo", "asteps", "aoutputs", "aresult"),
        *("cancel", "hold", "release", "acancel", "ahold", "arelease"),
        *("retry", "fork", "skip", "complete", "aretry", "afork", "askip", "acomplete"),
    }
)


class ChildRun:
    """The handle of a run that a step will start: its `id` and its `result()`."""

    def __init__(self, scope: Scope, step: str, definition: Definition) -> None:
        self._scope, self._step, self._definition = scope, step, definition

    @property
    def id(self) -> str:
        """The id of the run."""
        label = f"the id of the run that step {self._step!r} starts"
        return cast(str, Symbol(nodes.StepRef((self._step, RUN)), self._scope, label, str))

    def result(self, timeout: float | None = None) -> Any:
        """Return the result of the run; the step that starts it waits for it."""
        if timeout is not None:
            raise AuthoringError(
                f"{user_location()}: result() inside a workflow takes no timeout; leave it out"
            )
        statements = self._scope.statements
        at = next(i for i, other in enumerate(statements) if other.name == self._step)
        call = statements[at].call
        arguments = (*call.arguments[:-1], nodes.Argument("waits", nodes.Literal(True)))
        waiting = dataclasses.replace(call, arguments=arguments)
        statements[at] = dataclasses.replace(statements[at], call=waiting)
        label = f"step {self._step!r}"
        hint = self._definition.signature.result.hint
        return Symbol(nodes.StepRef((self._step, RESULT)), self._scope, label, hint)

    def __getattr__(self, name: str) -> Any:
        if name not in _READS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AuthoringError(
            f"{user_location()}: the body of a workflow is traced before any run, so a child run "
            f"has .id and .result() there, not .{name}; read it from outside, by its id"
        )


def start_child(
    scope: Scope,
    definition: Definition,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
    order: Order | None = None,
    on_cancel: OnCancel = "cancel",
) -> ChildRun:
    """Append a step that starts a child run."""
    location = user_location()
    inputs = scope.arguments(definition, args, kwargs, location)
    scope.declare(CHILD, _routed(STANDARD[CHILD], CHILD_DEFINITION))
    step = scope.step_name(definition.short_name, name, location)
    given = [
        nodes.Argument("workflow", nodes.Literal(definition.name)),
        nodes.Argument("inputs", nodes.MapLiteral(tuple((a.name, a.value) for a in inputs))),
    ]
    if on_cancel != "cancel":
        given.append(nodes.Argument("on_cancel", nodes.Literal(on_cancel)))
    call = nodes.Call(CHILD, (*given, nodes.Argument("waits", nodes.Literal(False))))
    after = after_nodes(order, scope)
    scope.append(nodes.StepStatement(step, call, location=location, after=after), str)
    return ChildRun(scope, step, definition)


def _routed(declared: nodes.FacetDeclaration, definition: Definition) -> nodes.FacetDeclaration:
    """Return the declaration with the task list that the app's routes choose for it."""
    return dataclasses.replace(declared, options=definition.options)


def _child(
    workflow: str, inputs: dict[str, Any], waits: bool, on_cancel: OnCancel = "cancel"
) -> Any:
    """Run by a worker: the child run uses the program of its parent."""
    return WorkflowCall(None, workflow, inputs, waits, on_cancel)


CHILD_DEFINITION = Definition(
    *(nodes.FacetKind.EVENT, _child, CHILD, (), location_of(_child), STANDARD[CHILD].options),
    names_list=False,
)
