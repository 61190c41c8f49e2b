"""``@workflow`` on a function that is run: its options, and the ones it refuses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Protocol

from flowengine.authoring.definitions import Definition
from flowengine.authoring.function_facets import FunctionWorkflow, function_workflow
from flowengine.authoring.locations import location_of
from flowengine.authoring.options import option_problems
from flowengine.errors import AuthoringError, MissingExtra
from flowengine.program.event_options import EventOptions
from flowengine.program.function_options import FunctionOptions, function_problems
from flowengine.program.nodes import FacetKind

_FUNCTION = ("version", "on_divergence")
RUN_OPTIONS = (*_FUNCTION, "task_list", "run")
_IN_FACETS = "give it to the event facets that the function awaits"
_REFUSED = {
    "retry": "a function is not tried again as a whole, its calls are: give retry=… to the event "
    "facets that it awaits, or catch the error and call again",
    "timeout": "a function may wait for months: write deadline=… for its runs, "
    "`async with asyncio.timeout(…)` for a part, or give timeout=… to an event facet",
    **dict.fromkeys(("max_losses", "on_loss", "breaker"), _IN_FACETS),
    **dict.fromkeys(("limit", "rate", "cache", "effects"), _IN_FACETS),
}


class Define(Protocol):
    def __call__(
        self, kind: FacetKind, fn: Any, given: Mapping[str, Any], *, is_run: bool
    ) -> Definition: ...


def is_run(fn: Any, given: Mapping[str, Any]) -> bool:
    """Whether the body of a workflow is run: an ``async def``, or one with ``run=True``."""
    return bool(given.get("run")) or inspect.iscoroutinefunction(fn)


def refuse_run_options(fn: Any, given: Mapping[str, Any]) -> None:
    """Raise AuthoringError if a workflow that is traced has options of one that is run."""
    if names := [name for name in RUN_OPTIONS if name in given and name != "run"]:
        raise _error(
            fn,
            given,
            [f"{', '.join(names)}: an option of a function that is run, and this body is traced; "
             "write `async def`, or @workflow(run=True)"],
        )  # fmt: skip


def durable_workflow(
    fn: Callable[..., Any], given: Mapping[str, Any], define: Define
) -> FunctionWorkflow[..., Any]:
    """Return the durable function of a decorated function; raises AuthoringError."""
    if problems := list(_problems(given)):
        raise _error(fn, given, problems)
    if given.get("run") and not inspect.iscoroutinefunction(fn) and find_spec("greenlet") is None:
        raise MissingExtra("@workflow(run=True) on a plain `def`", "sync", "greenlet")
    others = {name: value for name, value in given.items() if name not in RUN_OPTIONS}
    definition = define(FacetKind.WORKFLOW, fn, others, is_run=True)
    options = EventOptions(**_chosen(given, ("task_list",)))
    function = FunctionOptions(**_chosen(given, _FUNCTION))
    return function_workflow(definition, options, function, names_list="task_list" in given)


def _problems(given: Mapping[str, Any]) -> Iterator[str]:
    for name, cure in _REFUSED.items():
        if name in given:
            yield f"{name} is no option of a function that is run: {cure}"
    yield from function_problems(FunctionOptions(**_chosen(given, _FUNCTION)))
    yield from option_problems(_chosen(given, ("task_list",)))
    if not isinstance(given.get("run", True), bool):
        yield f"run={given['run']!r} is neither True nor False"


def _chosen(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _error(fn: Any, given: Mapping[str, Any], problems: list[str]) -> AuthoringError:
    label = given.get("name") or getattr(fn, "__qualname__", "?")
    return AuthoringError(f"workflow {label!r} ({location_of(fn)}): {'; '.join(problems)}")
