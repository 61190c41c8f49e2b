"""``attempt``: catch the error of a step and clean up, in a run or in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import Any, TypeAlias, TypeVar, overload

from flowengine.authoring.bodies import TracedBody, no_parameters, one_parameter, trace_body
from flowengine.authoring.current_function import refuse_construct
from flowengine.authoring.deadlines import deadline_mixins
from flowengine.authoring.locations import location_of, user_location
from flowengine.authoring.scopes import Scope, checked_step_name, current_scope
from flowengine.authoring.shapes import joined_hint
from flowengine.authoring.symbols import Symbol
from flowengine.errors import AuthoringError
from flowengine.program import nodes
from flowengine.program.standard import ATTEMPT, STANDARD

T = TypeVar("T")
U = TypeVar("U")

_USAGE = "attempt(lambda: …, catch=lambda error: …, always=lambda: …)"


@dataclass(frozen=True, slots=True)
class CaughtError:
    """The error of a failed attempt."""

    message: str
    type: str  #: the name of the exception's class
    path: str  #: the step that failed first


#: Errors of one handler: an exception class, the name of one, or a tuple of them.
ErrorKind: TypeAlias = type[Exception] | str | tuple[type[Exception] | str, ...]
Handler: TypeAlias = Callable[[CaughtError], U]
_Handlers: TypeAlias = list[tuple[tuple[str, ...], Handler[Any]]]


@overload
def attempt(
    body: Callable[[], T],
    *,
    catch: Handler[U],
    always: Callable[[], object] | None = ...,
    deadline: timedelta | float | None = ...,
    name: str | None = ...,
) -> T | U: ...
@overload
def attempt(
    body: Callable[[], T],
    *,
    catch: Mapping[ErrorKind, Handler[U]],
    always: Callable[[], object] | None = ...,
    deadline: timedelta | float | None = ...,
    name: str | None = ...,
) -> T | U: ...
@overload
def attempt(
    body: Callable[[], T],
    *,
    always: Callable[[], object],
    deadline: timedelta | float | None = ...,
    name: str | None = ...,
) -> T: ...
@overload
def attempt(body: Callable[[], T], *, deadline: timedelta | float, name: str | None = ...) -> T: ...
def attempt(
    body: Callable[[], Any],
    *,
    catch: Handler[Any] | Mapping[ErrorKind, Handler[Any]] | None = None,
    always: Callable[[], object] | None = None,
    deadline: timedelta | float | None = None,
    name: str | None = None,
) -> Any:
    """Return the value of the body, or of the handler that caught its error.

    `catch` is a lambda that takes the error, or a map from exception classes to such
    lambdas; an error that no class matches is raised. `always` runs at the end in either
    case; its value is discarded. If the body has not ended at its `deadline`, in seconds or as
    a timedelta, it fails with DeadlineExceeded. `name` is the step's name.
    """
    step_name = "" if name is None else checked_step_name(name)
    no_parameters(body, "the body of attempt", _USAGE)
    handlers = _handlers(catch)
    if always is not None:
        no_parameters(always, "always", _USAGE)
    mixins = deadline_mixins(deadline)
    if not handlers and always is None and not mixins:
        raise AuthoringError(
            f"{user_location()}: attempt neither catches an error nor has an `always`: {_USAGE}"
        )
    scope = current_scope()
    if scope is not None:
        return _trace(scope, body, handlers, always, step_name, mixins)
    refuse_construct("attempt")
    try:
        return body()
    except Exception as problem:
        kind = type(problem).__name__
        kinds = {base.__name__ for base in type(problem).__mro__}
        for names, handler in handlers:
            if not names or kinds.intersection(names):
                return handler(CaughtError(str(problem) or kind, kind, ""))
        raise
    finally:
        if always is not None:
            always()


def _handlers(catch: Any) -> _Handlers:
    """Return the handlers with the names of their errors; no names: every error."""
    if catch is None:
        return []
    by_kind = catch if isinstance(catch, Mapping) else {Exception: catch}
    handlers: _Handlers = []
    for kind, handler in by_kind.items():
        one_parameter(handler, "an error handler", "catch=lambda error: …")
        if handlers and not handlers[-1][0]:
            raise AuthoringError(
                f"{user_location()}: the handler of {kind!r} is unreachable: the handler "
                "before it catches every error"
            )
        handlers.append((_error_names(kind), handler))
    return handlers


def _error_names(kind: Any) -> tuple[str, ...]:
    """Return the class names that a handler matches; empty: every error.

    An error is recorded with the names of its class and its bases, so that a handler of a base
    class also catches the subclasses of other modules.
    """
    if isinstance(kind, tuple) and kind:
        each = [_error_names(one) for one in kind]
        return () if () in each else tuple(dict.fromkeys(name for names in each for name in names))
    if kind is Exception:
        return ()
    if isinstance(kind, str) and kind:
        return (kind,)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return (kind.__name__,)
    raise AuthoringError(
        f"{user_location()}: attempt cannot catch {kind!r}: name an exception class, its name as "
        "text, or several in a tuple"
    )


def _trace(
    scope: Scope,
    body: Callable[[], Any],
    handlers: _Handlers,
    always: Callable[[], object] | None,
    name: str,
    mixins: tuple[nodes.Mixin, ...],
) -> Symbol:
    location = user_location()
    step = scope.step_name("attempt", name, location)
    scope.declare(ATTEMPT, STANDARD[ATTEMPT])
    title = f"attempt step {step!r} ({location})"

    def inner(reason: str) -> Scope:
        return Scope(title, (), scope, reason=reason)

    tried = trace_body(inner(f"it has no value if {title} fails"), ATTEMPT, body)
    caught = [
        _trace_handler(inner(f"it has a value only if {title} fails"), step, handler)
        for _, handler in handlers
    ]
    final: tuple[nodes.Block, ...] = ()
    if always is not None:
        last = trace_body(inner(f"the value of `always` of {title} is discarded"), ATTEMPT, always)
        final = (nodes.Block(last.statements, location=location_of(always)),)
    statement = nodes.StepStatement(
        step,
        nodes.Call(ATTEMPT, mixins=mixins),
        (nodes.Block(tried.statements, tried.yields, location=location_of(body)),),
        catch=_catch(step, [names for names, _ in handlers], caught),
        always=final,
        location=location,
    )
    return scope.append(statement, joined_hint([tried.hint, *(branch.hint for branch in caught)]))


def _trace_handler(inner: Scope, step: str, handler: Handler[Any]) -> TracedBody:
    def symbol(attribute: str, field: str) -> Any:
        label = f"the {field} of the error of step {step!r}"
        return Symbol(nodes.StepRef((step, attribute)), inner, label, str)

    error = CaughtError(
        message=symbol("error", "message"),
        type=symbol("error_type", "type"),
        path=symbol("error_path", "path"),
    )
    return trace_body(inner, ATTEMPT, handler, error)


def _catch(
    step: str, names: list[tuple[str, ...]], traced: list[TracedBody]
) -> nodes.CatchClause | None:
    if not traced:
        return None
    if names == [()]:
        return nodes.CatchClause(traced[0].statements, traced[0].yields)
    cases = [
        nodes.WhenCase(_is_one_of(step, caught) if caught else None, body.statements, body.yields)
        for caught, body in zip(names, traced, strict=True)
    ]
    return nodes.CatchClause(cases=tuple(cases), first_match=True)


def _is_one_of(step: str, names: tuple[str, ...]) -> nodes.Expression:
    kinds = nodes.StepRef((step, "error_types"))
    tests = [nodes.Binary("contains", kinds, nodes.Literal(name)) for name in names]
    return reduce(lambda one, other: nodes.Binary("||", one, other), tests)
