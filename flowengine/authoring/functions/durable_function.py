"""A durable function: an ``async def`` that is run, and whose awaited calls are recorded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import pydantic

from flowengine.authoring.annotations import mismatch
from flowengine.authoring.definitions import Definition, define, titled
from flowengine.authoring.locations import location_of
from flowengine.errors import DoesNotFit, FunctionMisuse, InvalidInputs
from flowengine.program.event_options import NO_OPTIONS
from flowengine.program.function_options import without_version
from flowengine.program.nodes import FacetKind, Json
from flowengine.program.standard import RESULT


@dataclass(frozen=True, eq=False)
class DurableFunction:
    """The code of a durable function, with its name and the types of its values."""

    definition: Definition

    @property
    def name(self) -> str:
        """The qualified name."""
        return self.definition.name

    @property
    def globals(self) -> Mapping[str, Any]:
        """The names of its module."""
        return global_names(self.definition.fn)

    def coroutine(self, inputs: Mapping[str, Json]) -> Coroutine[Any, Any, Any]:
        """Return the body with stored inputs; raises InvalidInputs for those it refuses."""
        (args, kwargs), problems = self.definition.signature.read(inputs)
        if problems:
            raise InvalidInputs(self.name, problems)
        if self.is_plain:
            from flowengine.authoring.functions.plain_form import run_plainly

            return run_plainly(self.definition.fn, args, kwargs)
        body: Coroutine[Any, Any, Any] = self.definition.fn(*args, **kwargs)
        return body

    @property
    def is_plain(self) -> bool:
        """Whether it is a plain ``def``, whose calls are not awaited."""
        return not inspect.iscoroutinefunction(self.definition.fn)

    def written(self, returned: Any) -> Json:
        """Return the result as JSON; raises DoesNotFit or NotJson."""
        annotation = self.definition.signature.result
        try:
            return annotation.write(returned, f"the result of function {self.name!r}", RESULT)
        except pydantic.ValidationError as error:
            problem = mismatch(RESULT, annotation, returned, error)
            raise DoesNotFit(without_version(self.name), [problem], "workflow") from None


def durable_function(
    fn: Callable[..., Coroutine[Any, Any, Any]], *, name: str | None = None
) -> DurableFunction:
    """Make a durable function of an ``async def``; refuse any other function."""
    if not inspect.iscoroutinefunction(fn):
        title = titled(FacetKind.WORKFLOW, name or fn.__qualname__, location_of(fn))
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise FunctionMisuse(
                f"{title} yields: a durable function returns one value; collect them in a list"
            )
        raise FunctionMisuse(f"{title} is no `async def`: write `async def`, and await its calls")
    return DurableFunction(
        define(FacetKind.WORKFLOW, fn, name=name, aliases=(), options=NO_OPTIONS, is_run=True)
    )


def global_names(fn: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the names of the module of a function."""
    return getattr(inspect.unwrap(fn), "__globals__", {})
