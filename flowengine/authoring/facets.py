"""What a decorated function becomes: callable, nameable, and a workflow can be started.

Called inside a workflow that is being traced, each appends a step and returns a
symbol in place of its result. Called anywhere else it is the Python function it
was, so a unit test needs no engine. `ParamSpec` keeps the author's signature for
editors and type checkers through both.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

import pydantic

from flowengine.authoring.annotations import mismatch
from flowengine.authoring.breakers import Breaker
from flowengine.authoring.calls import WorkflowCall
from flowengine.authoring.children import CHILD_DEFINITION, start_child
from flowengine.authoring.definitions import Definition
from flowengine.authoring.launcher_slot import RunHandle, StartOptions, launcher
from flowengine.authoring.locations import user_location
from flowengine.authoring.registry import register_standard
from flowengine.authoring.scopes import Scope, checked_step_name, current_scope
from flowengine.authoring.symbols import Symbol, facts_of
from flowengine.authoring.tracer import program_of
from flowengine.errors import AuthoringError, DoesNotFit, InvalidInputs
from flowengine.program.nodes import EventOptions, Json, Location, Program
from flowengine.program.standard import RESULT

P = ParamSpec("P")
R = TypeVar("R")


class Decorated(Generic[P, R]):
    """A function that a workflow can call as a step."""

    __name__: str
    __qualname__: str

    def __init__(self, definition: Definition) -> None:
        functools.update_wrapper(cast(Callable[..., Any], self), definition.fn)
        self.definition = definition
        self.step_name = ""  #: the author's name for the step; empty: the facet's own

    @property
    def name(self) -> str:
        """The qualified name."""
        return self.definition.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Further qualified names it answers to."""
        return self.definition.aliases

    @property
    def location(self) -> Location:
        """Where the function stands."""
        return self.definition.location

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        scope = current_scope()
        if scope is not None:
            return cast(R, scope.call(self.definition, args, kwargs, self.step_name))
        for value in (*args, *kwargs.values()):
            if isinstance(value, Symbol):
                raise facts_of(value).reach.escape(facts_of(value).label)
        return cast(R, _finished(self.definition.fn(*args, **kwargs)))

    def named(self, step_name: str) -> Self:
        """The same facet, whose next step is called so."""
        named = copy.copy(self)
        named.step_name = checked_step_name(step_name)
        return named

    def __repr__(self) -> str:
        return f"<{self.definition.title}>"


class EventFacet(Decorated[P, R]):
    """Python code that a worker runs, as one step."""

    #: Whether another try would meet this error again; of a Celery task, what it would not retry.
    is_final: Callable[[BaseException], bool] = staticmethod(lambda problem: False)
    breaker: Breaker | None = None  #: what lets its tries through, as far as its author said it

    @property
    def fn(self) -> Callable[P, Any]:
        """The original function; of an ``async def`` it is the coroutine function."""
        return self.definition.fn

    @property
    def options(self) -> EventOptions:
        """How and where it is to be run."""
        return self.definition.options

    def run(self, data: Mapping[str, Json]) -> dict[str, Json] | WorkflowCall:
        """Run the function on stored arguments and give its result as JSON.

        Or the workflow that it wants to go on with.

        Raises DoesNotFit for arguments or a result that the annotations refuse,
        NotJson for a result JSON has no form for, and whatever the function raises.
        """
        (args, kwargs), problems = self.definition.signature.read(data)
        if problems:
            raise DoesNotFit(self.name, problems)
        returned = self.definition.fn(*args, **kwargs)
        if inspect.isawaitable(returned):
            returned = asyncio.run(_awaited(returned))
        if isinstance(returned, WorkflowCall):
            return returned
        annotation = self.definition.signature.result
        try:
            what = f"the result of event facet {self.name!r}"
            return {RESULT: annotation.write(returned, what, RESULT)}
        except pydantic.ValidationError as error:
            problem = mismatch(RESULT, annotation, returned, error)
            raise DoesNotFit(self.name, [problem]) from None


register_standard(EventFacet(CHILD_DEFINITION))


class Facet(Decorated[P, R]):
    """A body made of other facets, which the engine evaluates."""

    @property
    def fn(self) -> Callable[P, R]:
        """The original function."""
        return self.definition.fn


class Workflow(Decorated[P, R]):
    """A facet that can be started."""

    @property
    def fn(self) -> Callable[P, R]:
        """The original function."""
        return self.definition.fn

    def program(self) -> Program:
        """The program of this workflow and all it reaches, traced once."""
        return self._program

    @cached_property
    def _program(self) -> Program:
        return program_of(self.definition)

    def inputs(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Json]:
        """The arguments of a start as JSON, with Python's defaults.

        Raises InvalidInputs with all that does not fit, NotJson for what has no JSON form.
        """
        signature = self.definition.signature
        given, problems = signature.bound(args, kwargs)
        inputs, unfit = signature.written(given, f"an input of workflow {self.name!r}")
        if problems or unfit:
            raise InvalidInputs(self.name, problems + unfit)
        return inputs

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What an event facet returns to go on with this workflow.

        It is run as a run of its own, and its result is the result of the facet's step.
        """
        if current_scope() is not None:
            raise AuthoringError(
                f"{user_location()}: {self.definition.title}.call(...) is what an event facet "
                "returns; in a body call it like a function"
            )
        called = WorkflowCall(self.program(), self.name, self.inputs(*args, **kwargs))
        return cast(R, called)

    def start(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a durable run and return at once."""
        return Start[P, R](self, StartOptions()).start(*args, **kwargs)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a durable run from a coroutine."""
        return await Start[P, R](self, StartOptions()).astart(*args, **kwargs)

    def start_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[RunHandle[R]]:
        """Start a durable run for each of these maps of arguments, some dozens in one commit.

        All are checked before the first run is started.
        """
        return Start[P, R](self, StartOptions()).start_many(arguments)

    def options(
        self,
        *,
        key: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        connection: object | None = None,
    ) -> Start[P, R]:
        """The same workflow, to be started with these options."""
        return Start(self, StartOptions(key, priority, dict(labels or {}), connection))


class Start(Generic[P, R]):
    """A workflow with the options of its next start."""

    def __init__(self, workflow: Workflow[P, R], options: StartOptions) -> None:
        self._workflow = workflow
        self._options = options

    def start(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a durable run and return at once; inside a workflow it is a step that does so."""
        scope = current_scope()
        if scope is not None:
            return self._started_by_a_step(scope, args, kwargs)
        inputs = self._workflow.inputs(*args, **kwargs)
        return launcher().start(self._workflow, inputs, self._options)

    def _started_by_a_step(
        self, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RunHandle[R]:
        if self._options != StartOptions():
            raise AuthoringError(
                f"{user_location()}: a run that a workflow starts takes no options: it is started "
                "once, and has the priority of the run that starts it"
            )
        workflow = self._workflow
        return start_child(scope, workflow.definition, args, kwargs, workflow.step_name)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a durable run from a coroutine."""
        self._refuse_in_a_trace()
        inputs = self._workflow.inputs(*args, **kwargs)
        return await launcher().astart(self._workflow, inputs, self._options)

    def start_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[RunHandle[R]]:
        """Start a durable run for each of these maps of arguments, some dozens in one commit."""
        self._refuse_in_a_trace()
        if self._options.key is not None or self._options.connection is not None:
            raise AuthoringError(
                f"start_many of {self._workflow.definition.title} takes neither a key, which is "
                "for one run, nor a connection; use start"
            )
        inputs = [self._workflow.inputs(**given) for given in arguments]  # type: ignore[call-arg]
        return list(launcher().start_many(self._workflow, inputs, self._options))

    def _refuse_in_a_trace(self) -> None:
        # A body is traced in every process that checks or starts it: each trace
        # would start one more run.
        if current_scope() is not None:
            raise AuthoringError(
                f"{user_location()}: {self._workflow.definition.title} is started while another "
                "body is traced; call it like a function, it becomes a step of the run, or use "
                "start(...), which starts a run of its own"
            )


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _finished(returned: Any) -> Any:
    """What a facet called as plain Python gives: async ones too give their result.

    Inside a running event loop nobody may block; there the coroutine is left to
    the caller's own ``await``.
    """
    if not inspect.isawaitable(returned):
        return returned
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awaited(returned))
    return returned
