"""``attempt``: catch or report the error of a step and clean up, in a run or in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import Any, Literal, TypeAlias, TypeVar, overload

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

#: Ends that are not a failure of the body: `failed` does not run for them.
_NO_FAILURES = ("Cancelled", "Skipped")


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
    failed: Handler[object] | Mapping[ErrorKind, Handler[object]],
    reraise: Literal[True] = ...,
    always: Callable[[], object] | None = ...,
    deadline: timedelta | float | None = ...,
    name: str | None = ...,
) -> T: ...
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
    failed: Handler[Any] | Mapping[ErrorKind, Handler[Any]] | None = None,
    reraise: bool = True,
    always: Callable[[], object] | None = None,
    deadline: timedelta | float | None = None,
    name: str | None = None,
) -> Any:
    """Return the value of the body, or of the handler that caught its error.

    `catch` is a lambda that takes the error, or a map from exception classes to such
    lambdas; an error that no class matches is raised. `failed`, in its place, takes the error and
    does not catch it: it is raised again as it was (`reraise=True` says so at the call), also
    if `failed` fails itself. `always` runs at the end in either
    case; its value is discarded. If the body has not ended at its `deadline`, in seconds or as
    a timedelta, it fails with DeadlineExceeded. `name` is the step's name.
    """
    step_name = "" if name is None else checked_step_name(name)
    no_parameters(body, "the body of attempt", _USAGE)
    if failed is not None and (catch is not None or not reraise):
        other = "both `catch` and `failed`" if reraise else "`failed` with reraise=False"
        raise AuthoringError(
            f"{user_location()}: attempt takes {other}: a handler whose value replaces the result "
            f"is catch=lambda error: …; one that keeps the error is failed=lambda error: …; "
            "put one attempt into the other for both"
        )
    handlers, reports = _handlers(catch), _handlers(failed)
    if always is not None:
        no_parameters(always, "always", _USAGE)
    mixins = deadline_mixins(deadline)
    if not handlers and not reports and always is None and not mixins:
        raise AuthoringError(
            f"{user_location()}: attempt neither catches an error nor has an `always`: {_USAGE}"
        )
    scope = current_scope()
    if scope is not None:
        return _trace(scope, body, handlers, reports, always, step_name, mixins)
    refuse_construct("attempt")
    try:
        return body()
    except Exception as problem:
        kind = type(problem).__name__
        kinds = {base.__name__ for base in type(problem).__mro__}
        for names, handler in handlers or reports:
            if names and not kinds.intersection(names):
                continue
            error = CaughtError(str(problem) or kind, kind, "")
            if handlers:
                return handler(error)
            try:
                handler(error)
            except Exception as second:  # as in a run, the first error stays
                problem.add_note(f"`failed` failed too: {type(second).__name__}: {second}")
            break
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
    reports: _Handlers,
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
    if reports:
        around = inner(f"the value of `failed` of {title} is discarded")
        final = (*final, _report_block(around, step, reports))
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


def _report_block(around: Scope, step: str, reports: _Handlers) -> nodes.Block:
    """Return a block that runs when the step has ended: the handler, if the step has failed.

    An always block keeps the step's error unless it fails itself. So what the handler does is an
    attempt that catches every error of its own; it is seen as a failed step.
    """
    location = user_location()
    guard = around.step_name("failed", "", location)
    cases = []
    for names, handler in reports:
        scope = Scope(around.title, (), around, reason=around.reason)
        told = _trace_handler(scope, step, handler)
        statement = nodes.StepStatement(
            guard,
            nodes.Call(ATTEMPT),
            (nodes.Block(told.statements, told.yields, location=location_of(handler)),),
            catch=nodes.CatchClause(cases=(nodes.WhenCase(None),), first_match=True),
            location=location,
        )
        cases.append(nodes.WhenCase(_has_failed(step, names), (statement,)))
    cases.append(nodes.WhenCase(None))
    return nodes.Block(cases=tuple(cases), first_match=True, location=location)


def _has_failed(step: str, names: tuple[str, ...]) -> nodes.Expression:
    kind = nodes.StepRef((step, "error_type"))  # null: it has not failed
    ends = (None, *_NO_FAILURES)
    tests: list[nodes.Expression] = [nodes.Binary("!=", kind, nodes.Literal(end)) for end in ends]
    if names:
        tests.append(_is_one_of(step, names))
    return reduce(lambda one, other: nodes.Binary("&&", one, other), tests)


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
