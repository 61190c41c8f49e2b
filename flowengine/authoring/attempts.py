"""Recover from a failed step, and clean up behind it, in a run or in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias, TypeVar, overload

from flowengine.authoring.bodies import Traced, traced, with_one_parameter, without_parameters
from flowengine.authoring.locations import location_of, user_location
from flowengine.authoring.scopes import Scope, checked_step_name, current_scope
from flowengine.authoring.shapes import joined_hint
from flowengine.authoring.symbols import Symbol
from flowengine.errors import AuthoringError
from flowengine.program.nodes import (
    Binary,
    Block,
    Call,
    CatchClause,
    Expression,
    Literal,
    StepRef,
    StepStatement,
    WhenCase,
)
from flowengine.program.standard import ATTEMPT, STANDARD

T = TypeVar("T")
U = TypeVar("U")

_USAGE = "attempt(lambda: …, catch=lambda error: …, always=lambda: …)"


@dataclass(frozen=True, slots=True)
class CaughtError:
    """Why what was attempted has failed."""

    message: str
    type: str  #: the name of the exception's class
    path: str  #: the step that failed first


#: Which errors one handler is for: an exception, the name of one, or several of them.
ErrorKind: TypeAlias = type[Exception] | str | tuple[type[Exception] | str, ...]
Handler: TypeAlias = Callable[[CaughtError], U]
_Handlers: TypeAlias = list[tuple[tuple[str, ...], Handler[Any]]]


@overload
def attempt(
    body: Callable[[], T],
    *,
    catch: Handler[U],
    always: Callable[[], object] | None = ...,
    name: str | None = ...,
) -> T | U: ...
@overload
def attempt(
    body: Callable[[], T],
    *,
    catch: Mapping[ErrorKind, Handler[U]],
    always: Callable[[], object] | None = ...,
    name: str | None = ...,
) -> T | U: ...
@overload
def attempt(
    body: Callable[[], T], *, always: Callable[[], object], name: str | None = ...
) -> T: ...
def attempt(
    body: Callable[[], Any],
    *,
    catch: Handler[Any] | Mapping[ErrorKind, Handler[Any]] | None = None,
    always: Callable[[], object] | None = None,
    name: str | None = None,
) -> Any:
    """The value of the body, or of the handler that caught its error.

    `catch` is a lambda that is given the error, or a map of them by the kind of error: an
    error that no kind fits stays one. `always` is done in the end, however it went; its value
    is not used. `name` is the step's name.
    """
    step_name = "" if name is None else checked_step_name(name)
    without_parameters(body, "what is attempted", _USAGE)
    handlers = _handlers(catch)
    if always is not None:
        without_parameters(always, "always", _USAGE)
    if not handlers and always is None:
        raise AuthoringError(
            f"{user_location()}: attempt neither catches an error nor has an `always`: {_USAGE}"
        )
    scope = current_scope()
    if scope is not None:
        return _traced(scope, body, handlers, always, step_name)
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
    """The handlers with the names of the errors they are for; no names: for every error."""
    if catch is None:
        return []
    by_kind = catch if isinstance(catch, Mapping) else {Exception: catch}
    found: _Handlers = []
    for kind, handler in by_kind.items():
        with_one_parameter(handler, "the handler of an error", "catch=lambda error: …")
        if found and not found[-1][0]:
            raise AuthoringError(
                f"{user_location()}: the handler of {kind!r} is never reached: the one before it "
                "catches every error"
            )
        found.append((_names(kind), handler))
    return found


def _names(kind: Any) -> tuple[str, ...]:
    """Return the class names of a kind of errors; none for every error.

    An error is recorded with the names of its class and its bases, so that a handler of a base
    class also catches the subclasses of other modules.
    """
    if isinstance(kind, tuple) and kind:
        each = [_names(one) for one in kind]
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


def _traced(
    scope: Scope,
    body: Callable[[], Any],
    handlers: _Handlers,
    always: Callable[[], object] | None,
    name: str,
) -> Symbol:
    location = user_location()
    step = scope.step_name("attempt", name, location)
    scope.declare(ATTEMPT, STANDARD[ATTEMPT])
    title = f"attempt step {step!r} ({location})"

    def inner(because: str) -> Scope:
        return Scope(title, (), scope, because=because)

    tried = traced(inner(f"it has no value if {title} fails"), ATTEMPT, body)
    caught = [
        _caught(inner(f"it has a value only if {title} fails"), step, handler)
        for _, handler in handlers
    ]
    final: tuple[Block, ...] = ()
    if always is not None:
        last = traced(inner(f"nothing of `always` of {title} is kept"), ATTEMPT, always)
        final = (Block(last.statements, location=location_of(always)),)
    statement = StepStatement(
        step,
        Call(ATTEMPT),
        (Block(tried.statements, tried.yields, location=location_of(body)),),
        catch=_clause(step, [names for names, _ in handlers], caught),
        always=final,
        location=location,
    )
    return scope.appended(statement, joined_hint([tried.hint, *(way.hint for way in caught)]))


def _caught(inner: Scope, step: str, handler: Handler[Any]) -> Traced:
    def symbol(attribute: str, field: str) -> Any:
        label = f"the {field} of the error of step {step!r}"
        return Symbol(StepRef((step, attribute)), inner, label, str)

    error = CaughtError(
        message=symbol("error", "message"),
        type=symbol("error_type", "type"),
        path=symbol("error_path", "path"),
    )
    return traced(inner, ATTEMPT, handler, error)


def _clause(step: str, names: list[tuple[str, ...]], ways: list[Traced]) -> CatchClause | None:
    if not ways:
        return None
    if names == [()]:
        return CatchClause(ways[0].statements, ways[0].yields)
    cases = [
        WhenCase(_is_one_of(step, known) if known else None, way.statements, way.yields)
        for known, way in zip(names, ways, strict=True)
    ]
    return CatchClause(cases=tuple(cases), first_match=True)


def _is_one_of(step: str, names: tuple[str, ...]) -> Expression:
    kinds = StepRef((step, "error_types"))
    tests = [Binary("contains", kinds, Literal(name)) for name in names]
    return reduce(lambda one, other: Binary("||", one, other), tests)
