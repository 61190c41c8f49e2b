"""Problems of the options of event facets, for all front ends."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from flowengine.program.event_options import Cache, EventOptions, Limit, Rate, RetryPolicy
from flowengine.program.limit_keys import key_problems, whole_names
from flowengine.program.nodes import ArrayType, Field

#: Tries in one period of a rate: each of them is a row until the period has passed.
MAX_RATE_COUNT = 10_000
#: Tries of a step, lost tries, the factor of a retry, and places of a limit: databases store it.
MAX_COUNT = 1_000_000_000
MAX_PRIORITY = 1_000_000  #: of a run, and of an event facet
LONGEST_SECONDS = 100 * 365 * 86_400.0  #: a century: databases count milliseconds not much longer


def retry_problems(retry: RetryPolicy) -> Iterator[str]:
    if not is_count(retry.attempts):
        yield f"retry.attempts={retry.attempts!r} is not a whole number, 1 or more"
    for name in ("first_wait", "factor", "max_wait"):
        if not is_number(getattr(retry, name)):
            yield f"retry.{name}={getattr(retry, name)!r} is not a number, 0 or more"
    if not is_number(retry.jitter) or retry.jitter > 1:
        yield f"retry.jitter={retry.jitter!r} is not a share of the wait, 0 to 1"
    for name in ("on", "never_on"):
        names = getattr(retry, name)
        if not isinstance(names, tuple) or not all(isinstance(n, str) and n for n in names):
            yield f"retry.{name}={names!r} is not a list of exception classes, or of their names"


def beyond_numbers(options: EventOptions) -> Iterator[str]:
    """Return the problems of numbers that are too large to count or to wait for.

    Apart from the other checks: a stored program was accepted without these, and its run goes on.
    """
    retry = options.retry
    numbers: dict[str, tuple[Any, float]] = {
        "retry.attempts": (retry.attempts, MAX_COUNT),
        "retry.factor": (retry.factor, MAX_COUNT),
        "retry.first_wait": (retry.first_wait, LONGEST_SECONDS),
        "retry.max_wait": (retry.max_wait, LONGEST_SECONDS),
        "timeout": (options.timeout, LONGEST_SECONDS),
        "max_losses": (options.max_losses, MAX_COUNT),
    }
    limits = options.limit if isinstance(options.limit, tuple) else ()
    numbers |= {f"limit {one.key!r}: the count": (one.count, MAX_COUNT) for one in limits}
    for what, (value, most) in numbers.items():
        if isinstance(value, int | float) and not value <= most:  # also nan
            yield f"{what} is {_shown(value)}, and may be at most {most:,.0f}"


def _shown(value: float) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value) if value.bit_length() < 100 else hex(value)  # str refuses 4,300 digits
    return text if len(text) <= 40 else f"{text[:40]}…"


def limit_problems(limits: Any, rates: Any) -> Iterator[str]:
    for what, given, kind in (("limit", limits, Limit), ("rate", rates, Rate)):
        if not isinstance(given, tuple) or not all(isinstance(one, kind) for one in given):
            yield f"{what}={given!r} is not a {kind.__name__}(…), or a list of them"
            continue
        for one in given:
            if not isinstance(one.key, str) or not one.key.strip():
                yield f"{what}: the key {one.key!r} is not a text"
            if not is_count(one.count):
                stated = f"{what} {one.key!r}: the count {one.count!r}"
                yield f"{stated} is not a whole number, 1 or more"
            if isinstance(one, Rate):
                yield from _period_problems(one)
        for key in sorted({str(one.key) for one in given if _uses(given, one.key) > 1}):
            yield f"{what} {key!r} is given twice"


def priority_problems(priority: Any) -> Iterator[str]:
    if not isinstance(priority, int) or isinstance(priority, bool):
        yield f"priority={priority!r} is not a whole number"
    elif abs(priority) > MAX_PRIORITY:
        yield f"priority={priority} is beyond {MAX_PRIORITY:,}"


def cache_problems(cache: Any) -> Iterator[str]:
    if cache is None:
        return
    if not isinstance(cache, Cache):
        yield f"cache={cache!r} is not a Cache(key, max_age)"
        return
    if not isinstance(cache.key, str) or not cache.key.strip():
        yield f"cache: the key {cache.key!r} is not a text"
    age: Any = cache.max_age
    if not is_number(age) or not 0 < age <= LONGEST_SECONDS:
        yield f"cache {cache.key!r}: max_age={age!r} is not a number of seconds above 0"


def unused_cache(options: EventOptions, *, has_result: bool) -> Iterator[str]:
    """Return the problem of a cache of a facet without a result."""
    if options.cache is not None and not has_result:
        yield f"cache {options.cache.key!r}: the facet has no result that could be kept"


def _uses(given: Iterable[Any], key: str) -> int:
    return sum(one.key == key for one in given)


def _period_problems(rate: Rate) -> Iterator[str]:
    per: Any = rate.per
    if not is_number(per) or not 0 < per <= LONGEST_SECONDS:
        yield f"rate {rate.key!r}: per={rate.per!r} is not a number of seconds above 0"
    elif is_count(rate.count) and rate.count > MAX_RATE_COUNT:
        shorter = per * MAX_RATE_COUNT / rate.count
        yield (
            f"rate {rate.key!r}: the count {rate.count:,} is above {MAX_RATE_COUNT:,}; give a "
            f"shorter period, as Rate({rate.key!r}, {MAX_RATE_COUNT}, per={shorter:g})"
        )


def named_keys(options: EventOptions) -> Iterator[tuple[str, str]]:
    """Return the keys of the options, each with the option that has it."""
    for limit in options.limit:
        yield "limit", limit.key
    for rate in options.rate:
        yield "rate", rate.key
    if options.cache is not None:
        yield "cache", options.cache.key


def unknown_names(
    options: EventOptions,
    parameters: Collection[str],
    suggest: Callable[[str, Collection[str]], str],
) -> Iterator[str]:
    """Return the problems of keys that name no parameter of the facet."""
    for what, key in named_keys(options):
        for problem in key_problems(key, parameters, suggest):
            yield f"{what}: {problem}"


def container_keys(
    options: EventOptions, parameters: Iterable[Field], schemas: Collection[str]
) -> Iterator[str]:
    """Return the problems of keys with a parameter whose values are lists or maps.

    A step with such a value fails: its key could be any length.
    """
    kinds = {field.name: _container(field, schemas) for field in parameters}
    for what, key in named_keys(options):
        for name in whole_names(key):
            if kind := kinds.get(name, ""):
                part = f"{{{name}.…}}" if kind == "map" else "a parameter with a text of it"
                yield (
                    f"{what}: the key {key!r} names {name!r}, which is a {kind}: a key has texts, "
                    f"numbers, true, false and null; name {part}"
                )


def _container(field: Field, schemas: Collection[str]) -> str:
    declared = (field.schema or {}).get("type")
    if isinstance(field.type, ArrayType) or declared == "array":
        return "list"
    return "map" if field.type in schemas or declared == "object" else ""


def contradictions(facets: Iterable[tuple[str, EventOptions]]) -> Iterator[str]:
    """Return the keys that facets of one program give different numbers."""
    stated: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name, options in facets:
        for limit in options.limit:
            stated["limit", limit.key].setdefault(f"a limit of {limit.count}", name)
        for rate in options.rate:
            number = f"a rate of {rate.count} per {rate.per:g} s"
            stated["rate", rate.key].setdefault(number, name)
    for (_, key), numbers in stated.items():
        if len(numbers) > 1:
            given = " and ".join(f"{number} in {name!r}" for number, name in numbers.items())
            yield f"the key {key!r} has {given}: give it one number"


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and value >= 0
    except OverflowError:  # a whole number that no float can hold
        return False
