"""Errbacks of Celery as event facets: tasks that are called with request, error and traceback.

None of these has a JSON form, so the facet takes the failure of the step as a map, and the three
are made of it where the task runs. The request has the path of the failed step as task and id.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

FAILURE = "failure"  #: the parameter of the facet
#: Names by which an errback's third parameter is told from that of another task.
_TRACEBACKS = frozenset(("traceback", "tb", "trace", "einfo", "exc_traceback", "_traceback"))
_PLACES = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def is_errback(task: Any) -> bool:
    """Whether a task has the parameters (request, exc, traceback, …)."""
    try:
        parameters = list(inspect.signature(task.run).parameters.values())
    except (TypeError, ValueError):
        return False
    first = parameters[:3]
    return (
        len(first) == 3
        and all(p.kind in _PLACES and p.default is p.empty for p in first)
        and first[2].name in _TRACEBACKS
    )


def errback_function(task: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a facet whose first argument is a failure; `call` calls the task."""

    @functools.wraps(getattr(task.run, "__func__", task.run))
    def run(failure: Mapping[str, str], *args: Any, **kwargs: Any) -> Any:
        kind, message, path = (failure.get(name, "") for name in ("type", "message", "path"))
        # Outside any message the request of a task is an empty one, of the right class.
        request = type(task.request)(id=path, root_id=path, task=path, errbacks=None)
        names = vars(sys.modules[task.run.__module__])
        problem = original_error(kind, message, None, names)
        return call(request, problem, f"{path}: {kind}: {message}", *args, **kwargs)

    given = inspect.signature(task.run)
    failure = inspect.Parameter(FAILURE, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = [failure, *list(given.parameters.values())[3:]]
    run.__signature__ = given.replace(parameters=own)  # type: ignore[attr-defined]
    return run


def original_error(
    kind: str, message: str, bases: tuple[str, ...] | None, names: Mapping[str, Any]
) -> Exception:
    """Return an error of the class that was raised, found by its name; `names` are of a module.

    A class that this process does not have, or that takes other arguments, is made anew.
    """
    from flowengine.authoring.functions.rebuilt_errors import class_of  # loads asyncio

    found = class_of(kind, bases, (names,)) or _made_up(kind)
    for argument in (message, _read_literal(message)):  # KeyError shows the repr of its argument
        try:
            problem = found(argument)
            if str(problem) == message:
                return problem
        except Exception:  # it takes other arguments
            continue
    return _with_text(found, message)


def _made_up(kind: str) -> type[Exception]:
    made: type[Exception] = type(kind or "Exception", (Exception,), {"__module__": __name__})
    return made


def _read_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _with_text(kind: type[Exception], message: str) -> Exception:
    """Return an error of a class whose own arguments no record has."""
    try:
        names = {"__module__": kind.__module__, "__str__": lambda self: self.args[0]}
        joined: type[Exception] = type(kind.__name__, (kind,), names)
        problem = joined.__new__(joined, message)
        problem.args = (message,)
        str(problem), repr(problem)
    except Exception:  # its class cannot be combined, or refuses to
        return _made_up(kind.__name__)(message)
    return problem
