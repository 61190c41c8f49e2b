"""Built-in mixins that set options of an event: ``with Timeout(minutes = 5)`` and others.

They stand at a call or in the signature of a facet; those of the call come first. Their arguments
are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, TypeAlias

from flowengine.program.event_options import Cache, EventOptions, Limit, Rate, RetryPolicy
from flowengine.program.expressions import Constants, EvaluationError, evaluate
from flowengine.program.nodes import Argument, Literal, Mixin
from flowengine.program.option_checks import (
    LONGEST_SECONDS,
    cache_problems,
    is_number,
    limit_problems,
    retry_problems,
)
from flowengine.program.standard import NAMESPACE, is_built_in

TIMEOUT = "Timeout"
_SECONDS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0, "ms": 0.001}
_VALUES: dict[str, type[Any]] = {
    "Retry": RetryPolicy,
    "Limit": Limit,
    "Rate": Rate,
    "Cache": Cache,
}
_Value: TypeAlias = RetryPolicy | Limit | Rate | Cache


def is_timeout(mixin: Mixin) -> bool:
    return mixin.target.rpartition(".")[2] == TIMEOUT and not mixin.alias


def is_option(mixin: Mixin, is_declared: Callable[[str], bool], params: Iterable[str]) -> bool:
    """Whether a mixin sets an option.

    A mixin that is declared, or whose arguments are parameters of the facet, is one of the program,
    unless it is in the namespace of the engine.
    """
    if is_timeout(mixin):
        return True
    if mixin.alias or mixin.target.rpartition(".")[2] not in _VALUES:
        return False
    named = {argument.name for argument in mixin.arguments}
    is_own = is_declared(mixin.target) or "." in mixin.target or not named.isdisjoint(params)
    return is_built_in(mixin.target) or not is_own


def with_mixins(
    options: EventOptions, mixins: Sequence[Mixin], report: Callable[[str], object]
) -> EventOptions:
    """Return the options with those that mixins set; the first of several counts."""
    for mixin in reversed(mixins):
        try:
            name = mixin.target.rpartition(".")[2]
            if name == TIMEOUT:
                options = replace(options, timeout=_seconds(mixin.arguments))
                continue
            value = _value(name, mixin.arguments)
            problems = list(_problems(value))
            if problems:
                raise _Refused("; ".join(problems))
        except _Refused as problem:
            report(str(problem))
            continue
        if isinstance(value, RetryPolicy):
            options = replace(options, retry=value)
        elif isinstance(value, Limit):
            others = [one for one in options.limit if one.key != value.key]
            options = replace(options, limit=(value, *others))
        elif isinstance(value, Cache):
            options = replace(options, cache=value)
        else:
            slower = [one for one in options.rate if one.key != value.key]
            options = replace(options, rate=(value, *slower))
    return options


class _Refused(Exception):
    pass


def _problems(value: _Value) -> Iterator[str]:
    match value:
        case RetryPolicy():
            yield from retry_problems(value)
        case Limit():
            yield from limit_problems((value,), ())
        case Rate():
            yield from limit_problems((), (value,))
        case Cache():
            yield from cache_problems(value)


def _value(name: str, arguments: Iterable[Argument]) -> _Value:
    kind = _VALUES[name]
    known = [field.name for field in fields(kind)]
    given = {argument.name: _constant(name, argument) for argument in arguments}
    for argument in given:
        if argument not in known:
            raise _Refused(f"{name} has no parameter {argument!r}: it has {', '.join(known)}")
    try:
        made: _Value = kind(**given)
    except TypeError:
        needed = [field.name for field in fields(kind) if field.default is MISSING]
        wanted = " and ".join(repr(name) for name in needed if name not in given)
        raise _Refused(f"{name} needs {wanted}") from None
    return made


def _constant(name: str, argument: Argument) -> Any:
    try:
        return evaluate(argument.value, Constants())
    except EvaluationError:
        raise _Refused(f"{argument.name!r} of {name} must be a constant") from None


def _seconds(arguments: Iterable[Argument]) -> float:
    total = 0.0
    for argument in arguments:
        if argument.name not in _SECONDS:
            known = ", ".join(_SECONDS)
            raise _Refused(f"{TIMEOUT} has no parameter {argument.name!r}: it has {known}")
        try:
            value = evaluate(argument.value, Constants())
        except EvaluationError:
            value = None
        if not is_number(value):
            raise _Refused(f"{argument.name!r} of {TIMEOUT} must be a constant number")
        total += value * _SECONDS[argument.name]
    if not total <= LONGEST_SECONDS:
        raise _Refused(f"{TIMEOUT} is {total:g} seconds, and may be {LONGEST_SECONDS:g}")
    if total <= 0:
        raise _Refused(f"{TIMEOUT} must be greater than 0")
    return total


def call_mixins(retry: RetryPolicy | None, timeout: float | None) -> tuple[Mixin, ...]:
    """Return the mixins that set these options at a call."""
    mixins = []
    if retry is not None:
        named = {field.name: getattr(retry, field.name) for field in fields(RetryPolicy)}
        values = {n: list(v) if isinstance(v, tuple) else v for n, v in named.items()}
        changed = {n: v for n, v in values.items() if named[n] != getattr(RetryPolicy(), n)}
        mixins.append(Mixin(f"{NAMESPACE}.Retry", _constants(changed)))
    if timeout is not None:
        mixins.append(Mixin(f"{NAMESPACE}.{TIMEOUT}", _constants({"seconds": float(timeout)})))
    return tuple(mixins)


def _constants(values: Mapping[str, Any]) -> tuple[Argument, ...]:
    return tuple(Argument(name, Literal(value)) for name, value in values.items())
