"""The objects that the decorators return: `EventFacet`, `Facet`, `Workflow`.

A call inside a traced workflow appends a step and returns a symbol for its
result. Anywhere else it calls the Python function, so a unit test needs no
engine. `ParamSpec` preserves the signature for editors and type checkers.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, cast, get_args

import pydantic

from flowengine.authoring.annotations import mismatch
from flowengine.authoring.celery_names import refuse_celery_names
from flowengine.authoring.celery_tasks import AdaptedTask
from flowengine.authoring.current_function import is_in_function, refuse_start
from flowengine.authoring.deadlines import checked_deadline
from flowengine.authoring.definitions import Definition
from flowengine.authoring.launcher_slot import (
    IfFailed,
    IfRunning,
    OnCancel,
    RunHandle,
    StartOptions,
)
from flowengine.authoring.locations import location_of, user_location
from flowengine.authoring.options import Breaker, option_problems
from flowengine.authoring.order import Order, preceding_steps
from flowengine.authoring.plain_calls import resolved, run_awaitable
from flowengine.authoring.registry import register_standard
from flowengine.authoring.scopes import checked_step_name, current_scope
from flowengine.authoring.standard import CHILD_DEFINITION, WorkflowCall
from flowengine.authoring.starts import Start
from flowengine.authoring.symbols import Symbol, info_of
from flowengine.authoring.tracer import program_of
from flowengine.errors import AuthoringError, DoesNotFit, InvalidInputs
from flowengine.lazy import lazy
from flowengine.program.event_options import EventOptions, RetryPolicy
from flowengine.program.nodes import FacetKind, Json, Location, Mixin, Program
from flowengine.program.option_mixins import call_mixins
from flowengine.program.standard import RESULT
from flowengine.scheduling import Schedule

P = ParamSpec("P")
R = TypeVar("R")


@functools.cache  # an import statement takes longer than the rest of a quick call
def _function_calls() -> Any:
    """Return the module that makes calls of durable functions; it loads asyncio."""
    from flowengine.authoring.functions import calls

    return calls


class Decorated(Generic[P, R]):
    """A decorated function; a workflow calls it as a step."""

    __name__: str
    __qualname__: str

    def __init__(self, definition: Definition) -> None:
        functools.update_wrapper(cast(Callable[..., Any], self), definition.fn)
        self.definition = definition
        self.step_name = ""  #: given by the author; empty: derived from the facet's name
        self.order: Order | None = None  #: given by `after`
        self.call_mixins: tuple[Mixin, ...] = ()  #: given by `within` and `with_options`

    @property
    def name(self) -> str:
        """The qualified name."""
        return self.definition.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Further qualified names it is registered under."""
        return self.definition.aliases

    @property
    def location(self) -> Location:
        """File and line of the function."""
        return self.definition.location

    @property
    def fn(self) -> Callable[P, R]:
        """The original function."""
        return self.definition.fn

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a step of the workflow that is traced; elsewhere call the function in place."""
        scope = current_scope()
        if scope is not None:
            made = scope.call(
                self.definition, args, kwargs, self.step_name, self.order, self.call_mixins
            )
            return cast(R, made)
        for value in (*args, *kwargs.values()):
            if isinstance(value, Symbol):
                raise info_of(value).visibility.escape_error(info_of(value).label)
        if is_in_function():
            return cast(R, _function_calls().called(self, *args, **kwargs))
        return self.plain(*args, **kwargs)

    def acall(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Return a call that a durable function awaits; for type checkers, which know `await` so.

        At run time ``await charge(x)`` and ``await charge.acall(x)`` are the same.
        """
        if current_scope() is not None:
            raise AuthoringError(
                f"{user_location()}: {self.definition.title}.acall(…) is for durable functions, "
                "and this body is traced: call it like a function"
            )
        made: Coroutine[Any, Any, R] = _function_calls().acall(self, *args, **kwargs)
        return made

    def plain(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in place, as plain Python."""
        return cast(R, resolved(self.definition.fn(*args, **kwargs)))

    def named(self, step_name: str) -> Self:
        """Return the same facet with another name for its step."""
        named = copy.copy(self)
        named.step_name = checked_step_name(step_name)
        return named

    def after(self, *steps: object, on: Literal["completed", "ended"] = "completed") -> Self:
        """Return the same facet; its step begins when these steps have completed.

        It is for steps that do not use each other's results: they are given as the values that
        their calls returned. With ``on="ended"`` the steps may also have failed. ``after()``
        without a step states that none comes first: then `flowengine check` does not warn.
        """
        if current_scope() is None:
            return self  # plain Python calls one after the other
        ordered = copy.copy(self)
        given = preceding_steps(self.definition.title, steps, on)
        ordered.order = (*(self.order or ()), *given)
        return ordered

    def within(self, duration: timedelta | float) -> Self:
        """Return the same facet with a deadline for the step of its next call.

        A step that has not ended `duration` (seconds, if it is a number) after its beginning fails
        with DeadlineExceeded, whatever its tries do; the steps below it are cancelled.
        """
        limited = copy.copy(self)
        limited.call_mixins = (*self.call_mixins, checked_deadline(duration))
        return limited

    def __repr__(self) -> str:
        return f"<{self.definition.title}>"


class EventFacet(Decorated[P, R]):
    """Python code that a worker runs as one step."""

    #: Whether an error is not worth a retry; for a Celery task, the errors Celery would not retry.
    is_final: Callable[[BaseException], bool] = staticmethod(lambda problem: False)
    breaker: Breaker | None = None  #: as described by the decorator
    failure_level = logging.WARNING  #: of the log lines of failed tries
    expected: tuple[type[BaseException], ...] = ()  #: errors that are logged at INFO at most
    celery_task: AdaptedTask | None = None  #: the Celery task that it was made of
    validates = True  #: its annotation validates the result
    takes_failure = False  #: it is an errback of Celery, whose first argument is a failure

    @property
    def fn(self) -> Callable[P, Any]:
        """The original function; of an ``async def`` it is the coroutine function."""
        return self.definition.fn

    @lazy
    def is_async(self) -> bool:
        """Whether the function is an ``async def``."""
        return inspect.iscoroutinefunction(self.definition.fn)

    @property
    def options(self) -> EventOptions:
        """The execution options."""
        return self.definition.options

    def with_options(
        self, *, retry: RetryPolicy | None = None, timeout: float | None = None
    ) -> Self:
        """Return the same facet with another retry policy or timeout for the next call."""
        given = {"retry": retry, "timeout": timeout}
        if problems := option_problems({n: v for n, v in given.items() if v is not None}):
            raise AuthoringError(f"{user_location()}: {'; '.join(problems)}")
        changed = copy.copy(self)
        changed.call_mixins = (*self.call_mixins, *call_mixins(retry, timeout))
        return changed

    def run(self, data: Mapping[str, Json]) -> dict[str, Json] | WorkflowCall:
        """Run the function on stored arguments; return its result as JSON.

        Returns a WorkflowCall if the function continues with a workflow. Raises DoesNotFit
        for arguments or a result that the annotations refuse, NotJson for a result
        without JSON form, and any exception of the function.
        """
        returned = self.call(data)
        if inspect.isawaitable(returned):
            returned = run_awaitable(returned)
        return self.written(returned)

    def call(self, data: Mapping[str, Json]) -> Any:
        """Call the function with stored arguments; of an async function return the coroutine."""
        (args, kwargs), problems = self.definition.signature.read(data)
        if problems:
            raise DoesNotFit(self.name, problems)
        return self.definition.fn(*args, **kwargs)

    def written(self, returned: Any) -> dict[str, Json] | WorkflowCall:
        """Return the result of the function as JSON."""
        if isinstance(returned, WorkflowCall):
            return returned
        annotation = self.definition.signature.result
        try:
            what = f"the result of event facet {self.name!r}"
            return {RESULT: annotation.write(returned, what, RESULT)}
        except pydantic.ValidationError as error:
            problem = mismatch(RESULT, annotation, returned, error)
            raise DoesNotFit(self.name, [problem]) from None


def offer_standard(name: str, fn: Callable[..., Any], options: EventOptions) -> None:
    """Register a built-in event facet of this process."""
    definition = Definition(FacetKind.EVENT, fn, name, (), location_of(fn), options)
    register_standard(EventFacet(definition))


register_standard(EventFacet(CHILD_DEFINITION))


class Facet(Decorated[P, R]):
    """A body of steps that the engine evaluates."""


class Workflow(Decorated[P, R]):
    """A facet that can be started.

    ``.start(...)`` starts a durable run. A call, ``album(...)``, does not: inside a workflow it
    is a step of the caller's run; anywhere else the function runs in place, as plain Python,
    without a database, retries or a record.
    """

    schedules: tuple[Schedule, ...] = ()  #: at which the clock starts it

    def program(self) -> Program:
        """Return the program of this workflow and all it calls; traced once."""
        return self._program

    @lazy
    def _program(self) -> Program:
        return program_of(self.definition)

    def read_result(self, value: Json) -> Any:
        """Return the stored result of a run as the annotation says; raises DoesNotFit.

        A run that has completed by earlier code may have another result.
        """
        annotation = self.definition.signature.result
        try:
            return annotation.read(value)
        except pydantic.ValidationError as error:
            problem = mismatch(RESULT, annotation, value, error)
            raise DoesNotFit(self.name, [problem], "workflow") from None

    def inputs(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Json]:
        """Return the arguments of a start as JSON, with the defaults.

        Raises InvalidInputs with every invalid argument, NotJson for a value without JSON form.
        """
        signature = self.definition.signature
        given, problems = signature.bound(args, kwargs)
        inputs, unfit = signature.written(given, f"an input of workflow {self.name!r}")
        if problems or unfit:
            raise InvalidInputs(self.name, problems + unfit)
        return inputs

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Continue with this workflow: the return value for an event facet.

        It becomes a child run, whose result is the result of the facet's step.
        """
        if current_scope() is not None:
            raise AuthoringError(
                f"{user_location()}: {self.definition.title}.call(...) is a return value "
                "for event facets; in a workflow call it like a function"
            )
        refuse_start(self.definition.title)
        called = WorkflowCall(self.program(), self.name, self.inputs(*args, **kwargs))
        return cast(R, called)

    def start(self, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a durable run and return at once."""
        return Start[P, R](self, StartOptions()).start(*args, **kwargs)

    async def astart(self, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a durable run from a coroutine."""
        return await Start[P, R](self, StartOptions()).astart(*args, **kwargs)

    def start_many(
        self, arguments: Iterable[Mapping[str, Any]], *, keys: Iterable[str] | None = None
    ) -> list[RunHandle[R]]:
        """Start a durable run for each map of arguments, with dozens of runs in one commit.

        All arguments are validated before the first run is started. With `keys`, one for each
        map, a run whose key was used before is not started again.
        """
        return Start[P, R](self, StartOptions()).start_many(arguments, keys=keys)

    def options(
        self,
        *,
        key: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        connection: object | None = None,
        tenant: str = "",
        if_failed: IfFailed = "return",
        on_cancel: OnCancel = "cancel",
        deadline: timedelta | float | None = None,
        key_ttl: timedelta | float | None = None,
        singleton: str | None = None,
        if_running: IfRunning = "reject",
        max_open: int | None = None,
    ) -> Start[P, R]:
        """Return the workflow with options for its next start.

        A start with a used `key` returns the earlier run. If that has failed, `if_failed` decides:
        return it, start a new run that takes the key, or raise EarlierRunFailed. `on_cancel` is
        for child runs: with "leave" they go on when their parent is cancelled. A run that has not
        ended at its `deadline`, in seconds or as a timedelta, fails with DeadlineExceeded.

        After `key_ttl` the key is free again. Of the runs with the same `singleton` key one is open
        at a time; if one is, `if_running` decides: raise AlreadyRunning ("reject"), "return" it,
        cancel it and begin after it ("replace"), or "queue". With `max_open` runs of the workflow
        open already, the start is refused with TooManyRuns.
        """
        if on_cancel not in get_args(OnCancel):
            raise AuthoringError(f"on_cancel is 'cancel' or 'leave', not {on_cancel!r}")
        # The starter refuses labels that are no map, with all other problems.
        kept = dict(labels) if isinstance(labels, Mapping) else labels or {}
        given = StartOptions(key, priority, kept, connection, tenant, if_failed)
        given = replace(given, on_cancel=on_cancel, deadline=deadline, key_ttl=key_ttl)
        more = replace(given, singleton=singleton, if_running=if_running, max_open=max_open)
        return Start(self, more)


refuse_celery_names(Decorated)
