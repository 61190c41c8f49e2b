"""`FunctionWorkflow`, the object of a durable function, and `FunctionFacet`, its event facet.

A durable function is a workflow whose body is run: an ``async def``, or a plain function with
``run=True``. In a program it is an event facet with its version in the name, whose tries are the
activations of the function, and a workflow with one step that calls it. A traced workflow that
calls the function calls the event facet: the function is one step of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from flowengine.authoring.definitions import Definition
from flowengine.authoring.facets import EventFacet, Workflow
from flowengine.authoring.plain_calls import resolved
from flowengine.authoring.scopes import current_scope
from flowengine.errors import FunctionMisuse
from flowengine.lazy import lazy
from flowengine.program.function_options import FunctionOptions, function_facet
from flowengine.program.nodes import EventOptions, FacetKind, Json

if TYPE_CHECKING:
    from flowengine.authoring.functions.durable_function import DurableFunction

P = ParamSpec("P")
R = TypeVar("R")


class FunctionFacet(EventFacet[P, R]):
    """The event facet of a durable function: a worker runs its activations."""

    is_async = False  #: of the process's event loop it takes no place
    workflow: FunctionWorkflow[P, R]

    @property
    def function(self) -> FunctionOptions:
        """Version and policy of the function."""
        assert self.definition.function is not None
        return self.definition.function

    @lazy
    def durable(self) -> DurableFunction:
        """The code of the function, for `Activation`. Loads asyncio."""
        from flowengine.authoring.functions.durable_function import DurableFunction

        return DurableFunction(self.definition)

    def call(self, data: Mapping[str, Json]) -> Any:
        raise FunctionMisuse(
            f"{self.definition.title} is a durable function, which only its activations run: this "
            "worker cannot; upgrade flowengine in all processes"
        )


class FunctionWorkflow(Workflow[P, R]):
    """A durable function: a workflow whose body is run, and whose awaited calls are recorded."""

    activation: FunctionFacet[P, R]

    @property
    def version(self) -> int:
        """The version of its code, which its runs keep."""
        return self.activation.function.version

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a step of the workflow that is traced, or a call of the function that is run.

        Elsewhere the body runs as plain Python, without a record: as coroutine in an event loop,
        to its end where none runs.
        """
        scope = current_scope()
        if scope is None:
            return super().__call__(*args, **kwargs)
        made = scope.call(
            self.activation.definition, args, kwargs, self.step_name, self.order, self.call_mixins
        )
        return cast(R, made)

    def plain(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not inspect.iscoroutinefunction(self.definition.fn):
            return super().plain(*args, **kwargs)
        from flowengine.authoring.functions.calls import awaited_body

        return cast(R, resolved(awaited_body(self.definition.fn, *args, **kwargs)))


def function_workflow(
    definition: Definition, options: EventOptions, function: FunctionOptions, *, names_list: bool
) -> FunctionWorkflow[..., Any]:
    """Return the durable function of the definition of a workflow."""
    version = function.version
    activation = replace(
        definition,
        kind=FacetKind.EVENT,
        name=function_facet(definition.name, version),
        aliases=tuple(function_facet(alias, version) for alias in definition.aliases),
        given=options,
        names_list=names_list,
        mixins=(),
        function=function,
    )
    flow: FunctionWorkflow[..., Any] = FunctionWorkflow(replace(definition, activation=activation))
    flow.activation = FunctionFacet(activation)
    flow.activation.workflow = flow
    return flow
